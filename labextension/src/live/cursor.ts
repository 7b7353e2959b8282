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

  /** The iteration that is read out, null where none is. */
  get iteration(): number | null {
    return this._iteration;
  }

  /** A chart says which iteration is under its cursor. */
  hover(iteration: number | null): void {
    const { first, last } = this._store;
    const held = iteration !== null && iteration >= first && iteration <= last;
    const found = held && this._free ? iteration : null;
    if (found !== this._iteration) {
      this._iteration = found;
      this._at = found ?? this._at;
      this._changed();
    }
  }

  /** Read none, until the pointer is moved or a key does so again. */
  rest(): void {
    this._iteration = null;
    this._free = false;
  }

  /** Take a key; null where it means nothing here. */
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
  /** Whether what a chart says is what somebody points at. */
  private _free = true;
}
