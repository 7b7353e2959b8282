/**
 * What the keys do on the charts.
 */

import { IRange } from './range';

/** Put the cursor on an iteration (null: take it away), and zoom where said. */
export interface IKeyAction {
  cursor: number | null;
  zoom?: IRange;
}

/**
 * Read one key.
 *
 * @param key - as `KeyboardEvent.key` has it.
 * @param at - the iteration under the cursor.
 * @param range - the iterations on the screen.
 * @param held - the first and the last iteration there are.
 * @returns null for keys that mean nothing here.
 */
export function readKey(
  key: string,
  at: number,
  range: IRange,
  held: { first: number; last: number }
): IKeyAction | null {
  const { first, last } = held;
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
