import { RefObject, useLayoutEffect, useState } from 'react';

/** The initial width of a sidebar in JupyterLab; used until it is measured. */
const USUAL = 250;

/** Below this width nothing is legible. */
const LEAST = 180;

/** The current width of an element's content, or `fixed` if it is given. */
export function useWidth(
  element: RefObject<HTMLElement>,
  fixed?: number
): number {
  const [width, setWidth] = useState(USUAL);
  useLayoutEffect(() => {
    const node = element.current;
    if (fixed !== undefined || !node || typeof ResizeObserver === 'undefined') {
      return;
    }
    const measure = (): void => {
      // A hidden panel has no width; the last drawing is kept for when it is shown again.
      if (node.clientWidth > 0) {
        setWidth(Math.max(LEAST, node.clientWidth));
      }
    };
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    measure();
    return () => observer.disconnect();
  }, [element, fixed]);
  return fixed ?? width;
}
