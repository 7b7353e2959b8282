/**
 * A ring buffer of iterations: one typed array per figure, a row per rank, NaN for
 * unknown values. It grows up to its capacity, then drops the oldest iterations.
 */

import { Figure, FIGURES } from './protocol';

/** Initial number of allocated iterations. */
const FIRST_SLOTS = 1024;

export class IterationRing {
  /** Most iterations in the buffer. */
  get capacity(): number {
    return this._capacity;
  }

  /** The oldest stored iteration; undefined while `length` is 0. */
  get first(): number {
    return this._first;
  }

  /** The newest stored iteration, or -1. */
  get last(): number {
    return this._last;
  }

  /** The number of iterations from the oldest to the newest stored one. */
  get length(): number {
    return this._last < 0 ? 0 : this._last - this._first + 1;
  }

  /** The values of each figure; `at` has the index of an iteration's row. */
  get figures(): Readonly<Record<Figure, Float32Array>> {
    return this._figures;
  }

  /** Forget all iterations, and store this number of rows for each from now on. */
  reset(rows: number, capacity: number): void {
    this._rows = rows;
    this._capacity = capacity;
    this._first = 0;
    this._last = -1;
    this._allocate(Math.min(FIRST_SLOTS, capacity));
  }

  contains(iteration: number): boolean {
    return iteration >= this._first && iteration <= this._last;
  }

  /** The index of a row of a stored iteration. */
  at(iteration: number, row: number): number {
    return (iteration % this._slots) * this._rows + row;
  }

  /** The version in which an iteration last changed. */
  version(iteration: number): number {
    return this._versions[iteration % this._slots];
  }

  setVersion(iteration: number, version: number): void {
    this._versions[iteration % this._slots] = version;
  }

  /**
   * Allocate an iteration, and blank those between it and the stored ones.
   *
   * @returns false if it is older than the buffer.
   */
  open(iteration: number, version: number): boolean {
    if (this._last < 0) {
      this._first = this._last = iteration;
      return true;
    }
    this._grow(
      Math.max(this._last, iteration) - Math.min(this._first, iteration) + 1
    );
    if (iteration > this._last) {
      const oldest = iteration - this._capacity + 1;
      this._blank(Math.max(this._last + 1, oldest), iteration, version);
      this._last = iteration;
      this._first = Math.max(this._first, oldest);
      return true;
    }
    if (iteration < this._first) {
      if (this._last - iteration >= this._capacity) {
        return false;
      }
      this._blank(iteration, this._first - 1, version);
      this._first = iteration;
    }
    return true;
  }

  /** Allocate more iterations, up to the capacity. */
  private _grow(length: number): void {
    if (length <= this._slots || this._slots >= this._capacity) {
      return;
    }
    const figures = { ...this._figures };
    const [versions, slots] = [this._versions, this._slots];
    let larger = slots;
    while (larger < length && larger < this._capacity) {
      larger *= 2;
    }
    this._allocate(Math.min(larger, this._capacity));
    const oldest = Math.max(this._first, this._last - slots + 1);
    for (let iteration = oldest; iteration <= this._last; iteration++) {
      const from = (iteration % slots) * this._rows;
      const to = this.at(iteration, 0);
      for (const name of FIGURES) {
        const row = figures[name].subarray(from, from + this._rows);
        this._figures[name].set(row, to);
      }
      this.setVersion(iteration, versions[iteration % slots]);
    }
  }

  private _allocate(slots: number): void {
    this._slots = slots;
    this._versions = new Uint32Array(slots);
    for (const name of FIGURES) {
      const figures = new Float32Array(slots * this._rows);
      this._figures[name] = figures.fill(NaN);
    }
  }

  /** Clear the slots of these iterations. */
  private _blank(from: number, to: number, version: number): void {
    for (let iteration = from; iteration <= to; iteration++) {
      const at = this.at(iteration, 0);
      this.setVersion(iteration, version);
      for (const name of FIGURES) {
        this._figures[name].fill(NaN, at, at + this._rows);
      }
    }
  }

  private _rows = 0;
  private _capacity = 64;
  private _slots = 64;
  private _versions = new Uint32Array(64);
  private _first = 0;
  private _last = -1;
  private _figures = Object.fromEntries(
    FIGURES.map(name => [name, new Float32Array(0)])
  ) as Record<Figure, Float32Array>;
}
