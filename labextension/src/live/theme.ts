/**
 * The colours of the canvases, read from the CSS variables of `live.css`
 * (which are those of JupyterLab's theme if there is one).
 */

export interface ITheme {
  text: string;
  muted: string;
  grid: string;
  background: string;
  font: string;
}

export function readTheme(element: Element): ITheme {
  const style = getComputedStyle(element);
  const read = (name: string, fallback: string): string =>
    style.getPropertyValue(name).trim() || fallback;
  return {
    text: read('--jp-gw-live-text', '#212121'),
    muted: read('--jp-gw-live-muted', '#616161'),
    grid: read('--jp-gw-live-grid', '#e0e0e0'),
    background: read('--jp-gw-live-background', '#ffffff'),
    font: `11px ${read('--jp-gw-live-font', 'system-ui, sans-serif')}`
  };
}

/** Call `changed` when the theme may have changed; return an unsubscriber. */
export function watchTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.body, {
    attributeFilter: ['class', 'data-jp-theme-name', 'data-jp-theme-light']
  });
  const queries = ['(prefers-color-scheme: dark)', '(forced-colors: active)'];
  const media = queries.map(query => window.matchMedia?.(query));
  media.forEach(one => one?.addEventListener('change', changed));
  return () => {
    observer.disconnect();
    media.forEach(one => one?.removeEventListener('change', changed));
  };
}
