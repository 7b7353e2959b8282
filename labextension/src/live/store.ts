/**
 * The timings that a view holds: a ring of iterations by ranks.
 */

import { Figure, FIGURES, IRankPlace, IRows } from './protocol';

/** Rows (iterations times ranks) that a store keeps at most: 37 MB. */
const MAX_ROWS = 655360;

/** Iterations that a store keeps at most, however few ranks there are. */
const MAX_ITERATIONS = 100000;

/** Iterations that are allocated at first. */
const FIRST_ROOM = 1024;

/** Iterations that one rank may have reported before another, at the most. */
const BATCH = 512;

/** Whether a figure is bytes over time. */
export function isBandwidth(name: Figure): boolean {
  return name === 'busbw_gbps' || name === 'algbw_gbps';
}

/** Waiting by iteration and row. */
type Waits = Map<number, Map<number, number>>;

/**
 * Iterations by ranks in typed arrays, NaN where nothing is known. Adding a row
 * a second time overwrites it, so that windows and deltas may overlap. A ring
 * that grows with what comes, up to `capacity`.
 */
export class TimingStore {
  /**
   * Whether the iterations held stay as they are. Waiting arrives later than
   * the rest, and again as the ranks' clocks are known better: a paused view shows
   * that when it resumes.
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
    for (const [iteration, waits] of pending) {
      if (iteration >= this._first && iteration <= this._last) {
        const figures = this._figures.wait_us;
        const at = this._at(iteration, 0);
        waits.forEach((us, row) => (figures[at + row] = us));
        this._versions[iteration % this._room] = this._version;
      }
    }
  }

  /** The ranks, in the order of their rows on the screen. */
  get ranks(): readonly IRankPlace[] {
    return this._ranks;
  }

  /** Iterations that the ring holds at most. */
  get capacity(): number {
    return this._capacity;
  }

  /** The oldest iteration held; meaningless while `length` is 0. */
  get first(): number {
    return this._first;
  }

  /** The newest iteration held, -1 where there is none. */
  get last(): number {
    return this._last;
  }

  /** The number of iterations from the oldest to the newest held. */
  get length(): number {
    return this._last < 0 ? 0 : this._last - this._first + 1;
  }

  /** Set the ranks; other ranks than before empty the store. */
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
    this._capacity = Math.min(MAX_ITERATIONS, Math.max(64, each));
    this.clear();
  }

  /** Forget all iterations. */
  clear(): void {
    this._first = 0;
    this._last = -1;
    this._later?.clear();
    this._make(Math.min(FIRST_ROOM, this._capacity));
  }

  /** Grows with each change of an iteration's figures: what was derived is stale then. */
  version(iteration: number): number {
    return this._versions[iteration % this._room];
  }

  /** Add rows, ordered by iteration; rows of ranks not set are left out. */
  add(rows: IRows): void {
    const iterations = rows.columns.get('iteration');
    const ranks = rows.columns.get('rank');
    if (!iterations || !ranks) {
      return;
    }
    const sources = FIGURES.map(name => rows.columns.get(name));
    this._version += 1;
    for (let i = 0; i < rows.rows; i++) {
      const row = this._rows.get(ranks[i]);
      if (row === undefined || !this._open(iterations[i])) {
        continue;
      }
      const at = this._at(iterations[i], row);
      const held = !Number.isNaN(this._figures.iteration_us[at]);
      let changed = false;
      for (let c = 0; c < FIGURES.length; c++) {
        const target = this._figures[FIGURES[c]];
        const value = sources[c]?.[i] ?? NaN;
        if (this._later && held && FIGURES[c] === 'wait_us') {
          waitsOf(this._later, iterations[i]).set(row, value);
          continue;
        }
        changed ||= !Object.is(target[at], value);
        target[at] = value;
      }
      if (changed) {
        this._versions[iterations[i] % this._room] = this._version;
      }
    }
  }

  /** One figure of one iteration on one rank (by row), NaN where not known. */
  get(name: Figure, iteration: number, row: number): number {
    if (iteration < this._first || iteration > this._last) {
      return NaN;
    }
    return this._figures[name][this._at(iteration, row)];
  }

  /** One figure of all ranks of an iteration that is held, in row order; not a copy. */
  ranksOf(name: Figure, iteration: number): Float32Array {
    const at = this._at(iteration, 0);
    return this._figures[name].subarray(at, at + this._ranks.length);
  }

  /**
   * One figure of one iteration: of one rank, or the mean over the ranks that
   * are known (`row` null). A bandwidth counts by the time that it took, so that
   * it is all bytes over all that time.
   */
  mean(name: Figure, iteration: number, row: number | null): number {
    if (row !== null) {
      return this.get(name, iteration, row);
    }
    if (iteration < this._first || iteration > this._last) {
      return NaN;
    }
    const figures = this._figures[name];
    const times = isBandwidth(name) ? this._figures.communication_us : null;
    const from = this._at(iteration, 0);
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

  /** Whether an iteration is the first of its cell, which warms up. */
  isFirst(iteration: number): boolean {
    return this.mean('first', iteration, null) > 0;
  }

  /**
   * The newest iteration that all ranks have reported: records come in batches,
   * each rank's at its own time. The newest of all where there is none.
   */
  get lastWhole(): number {
    const reported = (iteration: number): boolean =>
      this._ranks.every((_, row) => {
        const value = this.get('iteration_us', iteration, row);
        return value === value;
      });
    const oldest = Math.max(this._first, this._last - BATCH);
    for (let iteration = this._last; iteration >= oldest; iteration--) {
      if (reported(iteration)) {
        return iteration;
      }
    }
    return this._last;
  }

  /** Allocate an iteration; false where it is older than the ring. */
  private _open(iteration: number): boolean {
    if (this._last < 0) {
      this._first = this._last = iteration;
      return true;
    }
    this._grow(
      Math.max(this._last, iteration) - Math.min(this._first, iteration) + 1
    );
    if (iteration > this._last) {
      this._blank(
        Math.max(this._last + 1, iteration - this._capacity + 1),
        iteration
      );
      this._last = iteration;
      this._first = Math.max(this._first, iteration - this._capacity + 1);
      return true;
    }
    if (iteration < this._first) {
      if (this._last - iteration >= this._capacity) {
        return false;
      }
      this._blank(iteration, this._first - 1);
      this._first = iteration;
    }
    return true;
  }

  /** Allocate so many iterations, as far as the capacity goes. */
  private _grow(length: number): void {
    if (length <= this._room || this._room >= this._capacity) {
      return;
    }
    const figures = { ...this._figures };
    const [versions, room] = [this._versions, this._room];
    let larger = room;
    while (larger < length && larger < this._capacity) {
      larger *= 2;
    }
    this._make(Math.min(larger, this._capacity));
    const width = this._ranks.length;
    const oldest = Math.max(this._first, this._last - room + 1);
    for (let iteration = oldest; iteration <= this._last; iteration++) {
      const from = (iteration % room) * width;
      const to = this._at(iteration, 0);
      for (const name of FIGURES) {
        const row = figures[name].subarray(from, from + width);
        this._figures[name].set(row, to);
      }
      this._versions[iteration % this._room] = versions[iteration % room];
    }
  }

  private _make(room: number): void {
    this._room = room;
    this._versions = new Uint32Array(room);
    for (const name of FIGURES) {
      const figures = new Float32Array(room * this._ranks.length);
      this._figures[name] = figures.fill(NaN);
    }
  }

  /** Forget what the slots of these iterations held before. */
  private _blank(from: number, to: number): void {
    const width = this._ranks.length;
    for (let iteration = from; iteration <= to; iteration++) {
      const at = this._at(iteration, 0);
      this._versions[iteration % this._room] = this._version;
      for (const name of FIGURES) {
        this._figures[name].fill(NaN, at, at + width);
      }
    }
  }

  private _at(iteration: number, row: number): number {
    return (iteration % this._room) * this._ranks.length + row;
  }

  private _ranks: IRankPlace[] = [];
  private _rows = new Map<number, number>();
  private _capacity = 64;
  private _room = 64;
  private _version = 0;
  private _versions = new Uint32Array(64);
  private _first = 0;
  private _last = -1;
  /** Waiting that arrived while the view is paused; null while it follows. */
  private _later: Waits | null = null;
  private _figures = Object.fromEntries(
    FIGURES.map(name => [name, new Float32Array(0)])
  ) as Record<Figure, Float32Array>;
}

function waitsOf(all: Waits, iteration: number): Map<number, number> {
  let waits = all.get(iteration);
  if (!waits) {
    waits = new Map();
    all.set(iteration, waits);
  }
  return waits;
}
