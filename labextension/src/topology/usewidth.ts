import { RefObject, useLayoutEffect, useState } from 'react';

/** Of a sidebar as Lab opens it; drawn with until there is a real one. */
const USUAL = 250;

/** So narrow that nothing can be read anyway. */
const LEAST = 180;

/** The width of an element's content, kept up to date; `fixed` where it is given. */
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
      // A hidden panel has none; what was drawn last stays for when it comes back.
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
