/**
 * Watching an element's size and visibility; each function returns an unsubscriber.
 */

export function watchSize(node: Element, changed: () => void): () => void {
  const observer = new ResizeObserver(changed);
  observer.observe(node);
  return () => observer.disconnect();
}

/** The width of an element's content in CSS pixels, without its padding. */
export function contentWidth(node: Element): number {
  const { paddingLeft, paddingRight } = getComputedStyle(node);
  const padding =
    (parseFloat(paddingLeft) || 0) + (parseFloat(paddingRight) || 0);
  return Math.max(0, node.clientWidth - padding);
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
