/**
 * The iterations on the screen, and whether they move.
 */

export interface IRange {
  /** The first iteration, and the one after the last. */
  from: number;
  to: number;
}

/** The fewest iterations that a zoom shows. */
const FEWEST = 4;

/** The mode of a view: follow the newest iterations, pause, or show a selection. */
export type Mode = 'follow' | 'pause' | 'select';

/**
 * Follows the newest iterations until the user zooms or pauses. While there are
 * fewer than the followed number, they fill the axis.
 */
export class ViewRange {
  /** Number of the newest iterations that are followed; null means all. */
  span: number | null = 400;

  get mode(): Mode {
    return this._mode;
  }

  /** The range to draw, given the first and last stored iteration. */
  current(first: number, last: number): IRange {
    if (this._fixed) {
      return this._fixed;
    }
    const from =
      this.span === null ? first : Math.max(first, last - this.span + 1);
    return { from, to: Math.max(last + 1, from + FEWEST) };
  }

  /** Keep these iterations on the screen, paused or selected. */
  fix(range: IRange, mode: 'pause' | 'select'): void {
    this._mode = mode;
    const from = Math.floor(range.from);
    this._fixed = { from, to: Math.max(Math.ceil(range.to), from + FEWEST) };
  }

  follow(): void {
    this._mode = 'follow';
    this._fixed = null;
  }

  private _mode: Mode = 'follow';
  private _fixed: IRange | null = null;
}
