/**
 * Watching an element's place on the page; each returns how to stop.
 */

export function watchSize(node: Element, changed: () => void): () => void {
  const observer = new ResizeObserver(changed);
  observer.observe(node);
  return () => observer.disconnect();
}

export function watchVisibility(
  node: Element,
  changed: (visible: boolean) => void
): () => void {
  const observer = new IntersectionObserver(entries => {
    changed(entries[entries.length - 1].isIntersecting);
  });
  observer.observe(node);
  return () => observer.disconnect();
}
