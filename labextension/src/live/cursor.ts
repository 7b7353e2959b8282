/**
 * The iteration that is read out: under the pointer, or chosen by keys.
 */

import { IKeyAction, readKey } from './keys';
import { IRange } from './range';
import { TimingStore } from './store';

export class Cursor {
  constructor(
    node: HTMLElement,
    private _store: TimingStore,
    private _changed: () => void
  ) {
    node.addEventListener('mousemove', () => {
      this._free = true;
    });
  }

  /** The iteration that is read out, or null. */
  get iteration(): number | null {
    return this._iteration;
  }

  /** A chart reports the iteration under its cursor. */
  hover(iteration: number | null): void {
    const { first, last } = this._store;
    const isStored =
      iteration !== null && iteration >= first && iteration <= last;
    const found = isStored && this._free ? iteration : null;
    if (found !== this._iteration) {
      this._iteration = found;
      this._at = found ?? this._at;
      this._changed();
    }
  }

  /** Read out none, until the pointer is moved or a key is pressed. */
  rest(): void {
    this._iteration = null;
    this._free = false;
  }

  /** Handle a key; return null if it has no meaning here. */
  press(key: string, range: IRange): IKeyAction | null {
    const { first, last } = this._store;
    const at = this._iteration ?? this._at ?? last;
    const within = Math.min(range.to - 1, Math.max(range.from, at));
    const action = readKey(key, within, range, { first, last });
    if (action) {
      this._free = true;
      this._at = action.cursor;
    }
    return action;
  }

  private _iteration: number | null = null;
  private _at: number | null = null;
  /** Whether the iteration reported by a chart is one that the user points at. */
  private _free = true;
}
