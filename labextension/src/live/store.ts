/**
 * The timings of a view: iterations by ranks.
 */

import { Figure, FIGURES, IRankPlace, IRows, LeftOut } from './protocol';
import { IterationRing } from './ring';

/** Most rows (iterations times ranks) in a store: 37 MB. */
const MAX_ROWS = 655360;

/** Most iterations in a store, for any number of ranks. */
const MAX_ITERATIONS = 100000;

/** Most iterations that one rank may report before another. */
const BATCH = 512;

/** Whether a figure is bytes over time. */
export function isBandwidth(name: Figure): boolean {
  return name === 'busbw_gbps' || name === 'algbw_gbps';
}

/** By iteration, the figures of each row one after the other; NaN for rows without any. */
type Later = Map<number, Float32Array>;

/**
 * The figures of each iteration and rank, NaN for unknown values. A row that is added
 * again replaces the earlier one, so that windows and deltas may overlap.
 */
export class TimingStore {
  /**
   * Whether the stored iterations are frozen. A row arrives again with its waiting
   * times, and with the parts of its exposed time, as the clock offsets are refined: a
   * paused view shows it when it resumes, so that its figures fit each other.
   */
  get still(): boolean {
    return this._later !== null;
  }

  set still(value: boolean) {
    if (value) {
      this._later ??= new Map();
      return;
    }
    const pending = this._later ?? [];
    this._later = null;
    this._version += 1;
    for (const [iteration, figures] of pending) {
      for (let row = 0; row < this._ranks.length; row++) {
        const values = rowOf(figures, row);
        if (this._ring.contains(iteration) && isStored(values)) {
          this._put(iteration, row, values);
        }
      }
    }
  }

  /** The ranks, in the order of their rows on the screen. */
  get ranks(): readonly IRankPlace[] {
    return this._ranks;
  }

  /** Most iterations that are stored. */
  get capacity(): number {
    return this._ring.capacity;
  }

  /** The oldest stored iteration; undefined while `length` is 0. */
  get first(): number {
    return this._ring.first;
  }

  /** The newest stored iteration, or -1. */
  get last(): number {
    return this._ring.last;
  }

  /** The number of iterations from the oldest to the newest stored one. */
  get length(): number {
    return this._ring.length;
  }

  /** Set the ranks; the store is emptied if they change. */
  setRanks(ranks: readonly IRankPlace[]): void {
    const same =
      ranks.length === this._ranks.length &&
      ranks.every((place, row) => place.rank === this._ranks[row].rank);
    this._ranks = ranks.slice();
    if (same) {
      return;
    }
    this._rows = new Map(ranks.map((place, row) => [place.rank, row]));
    const each = Math.floor(MAX_ROWS / Math.max(1, ranks.length));
    const capacity = Math.min(MAX_ITERATIONS, Math.max(64, each));
    this._later?.clear();
    this._ring.reset(ranks.length, capacity);
  }

  /** Forget all iterations. */
  clear(): void {
    this._later?.clear();
    this._ring.reset(this._ranks.length, this._ring.capacity);
  }

  /** Increases with each change of an iteration's figures, so that derived data can be updated. */
  version(iteration: number): number {
    return this._ring.version(iteration);
  }

  /** Add rows, ordered by iteration; rows of unknown ranks are ignored. */
  add(rows: IRows): void {
    const iterations = rows.columns.get('iteration');
    const ranks = rows.columns.get('rank');
    if (!iterations || !ranks) {
      return;
    }
    const sources = FIGURES.map(name => rows.columns.get(name));
    this._version += 1;
    const values = new Float32Array(FIGURES.length);
    for (let i = 0; i < rows.rows; i++) {
      const row = this._rows.get(ranks[i]);
      if (row === undefined || !this._ring.open(iterations[i], this._version)) {
        continue;
      }
      sources.forEach((source, c) => (values[c] = source?.[i] ?? NaN));
      const now = this.get('iteration_us', iterations[i], row);
      if (this._later && !Number.isNaN(now)) {
        rowOf(this._pending(this._later, iterations[i]), row).set(values);
      } else {
        this._put(iterations[i], row, values);
      }
    }
  }

  /** One figure of one iteration on one rank (by row), NaN if unknown. */
  get(name: Figure, iteration: number, row: number): number {
    return this._ring.contains(iteration)
      ? this._ring.figures[name][this._ring.at(iteration, row)]
      : NaN;
  }

  /** One figure of all ranks of a stored iteration, in row order; not a copy. */
  ranksOf(name: Figure, iteration: number): Float32Array {
    const at = this._ring.at(iteration, 0);
    return this._ring.figures[name].subarray(at, at + this._ranks.length);
  }

  /**
   * One figure of one iteration: of one rank, or the mean over the ranks with a value
   * (`row` null). Bandwidths are weighted by the duration of the communication.
   */
  mean(name: Figure, iteration: number, row: number | null): number {
    if (row !== null) {
      return this.get(name, iteration, row);
    }
    if (!this._ring.contains(iteration)) {
      return NaN;
    }
    const { communication_us: durations, [name]: figures } = this._ring.figures;
    const times = isBandwidth(name) ? durations : null;
    const from = this._ring.at(iteration, 0);
    const to = from + this._ranks.length;
    let sum = 0;
    let weights = 0;
    for (let at = from; at < to; at++) {
      const value = figures[at];
      if (value === value) {
        const weight = times ? times[at] : 1;
        sum += value * weight;
        weights += weight;
      }
    }
    return weights ? sum / weights : NaN;
  }

  /** Whether means leave an iteration out, because of any of its ranks. */
  leftOut(iteration: number): LeftOut {
    let most = LeftOut.No;
    if (this._ring.contains(iteration)) {
      for (const value of this.ranksOf('left_out', iteration)) {
        most = value > most ? value : most; // NaN if the rank has not reported
      }
    }
    return most;
  }

  /**
   * The newest iteration that all ranks have reported, because each rank sends its
   * records in batches; the newest of all if there is none.
   */
  get lastWhole(): number {
    const reported = (iteration: number): boolean =>
      this._ranks.every((_, row) => {
        const value = this.get('iteration_us', iteration, row);
        return value === value;
      });
    const { first, last } = this._ring;
    const oldest = Math.max(first, last - BATCH);
    for (let iteration = last; iteration >= oldest; iteration--) {
      if (reported(iteration)) {
        return iteration;
      }
    }
    return last;
  }

  /** Store the figures of a row. */
  private _put(iteration: number, row: number, values: Float32Array): void {
    const at = this._ring.at(iteration, row);
    FIGURES.forEach((name, c) => {
      const target = this._ring.figures[name];
      if (!Object.is(target[at], values[c])) {
        target[at] = values[c];
        this._ring.setVersion(iteration, this._version);
      }
    });
  }

  private _pending(later: Later, iteration: number): Float32Array {
    let figures = later.get(iteration);
    if (!figures) {
      figures = new Float32Array(this._ranks.length * FIGURES.length);
      later.set(iteration, figures.fill(NaN));
      if (later.size > this.capacity) {
        later.delete(later.keys().next().value!); // the oldest
      }
    }
    return figures;
  }

  private _ranks: IRankPlace[] = [];
  private _rows = new Map<number, number>();
  private _version = 0;
  /** What arrived again while the view is paused; null while it follows. */
  private _later: Later | null = null;
  private _ring = new IterationRing();
}

function rowOf(figures: Float32Array, row: number): Float32Array {
  return figures.subarray(row * FIGURES.length, (row + 1) * FIGURES.length);
}

function isStored(values: Float32Array): boolean {
  return !Number.isNaN(values[FIGURES.indexOf('iteration_us')]);
}
