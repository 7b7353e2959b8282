/**
 * The effect of keys on the charts.
 */

import { IRange } from './range';

/** Move the cursor to an iteration (null removes it), and zoom if given. */
export interface IKeyAction {
  cursor: number | null;
  zoom?: IRange;
}

/**
 * Interpret one key.
 *
 * @param key - the value of `KeyboardEvent.key`.
 * @param at - the iteration under the cursor.
 * @param range - the iterations on the screen.
 * @param stored - the first and the last stored iteration.
 * @returns null for keys without a meaning here.
 */
export function readKey(
  key: string,
  at: number,
  range: IRange,
  stored: { first: number; last: number }
): IKeyAction | null {
  const { first, last } = stored;
  const within = (iteration: number): IKeyAction => ({
    cursor: Math.min(last, Math.max(first, iteration))
  });
  const zoom = (factor: number): IKeyAction => {
    const half = ((range.to - range.from) * factor) / 2;
    const from = Math.max(first, at - half);
    return { cursor: at, zoom: { from, to: Math.min(last + 1, at + half) } };
  };
  switch (key) {
    case 'ArrowLeft':
      return within(at - 1);
    case 'ArrowRight':
      return within(at + 1);
    case 'Home':
      return within(range.from);
    case 'End':
      return within(range.to - 1);
    case '+':
      return zoom(0.5);
    case '-':
      return zoom(2);
    case '[':
      return { cursor: at, zoom: { from: at, to: Math.max(range.to, at + 1) } };
    case ']':
      return {
        cursor: at,
        zoom: { from: Math.min(range.from, at), to: at + 1 }
      };
    case 'Escape':
      return { cursor: null };
    default:
      return null;
  }
}
