/**
 * Thousands of iterations on hundreds of pixels: a mean per pixel column, with
 * the peaks that a mean would hide.
 */

import { EXPOSED, IN_STACK, OVERLAPPED } from './phases';
import { Figure, LeftOut } from './protocol';
import { isBandwidth, TimingStore } from './store';

/** Iterations drawn together; `to` is exclusive. */
export interface ISpan {
  from: number;
  to: number;
}

/** The figures whose means a column contains, in this order. */
export const MEANS: readonly Figure[] = [
  ...IN_STACK.map(phase => phase.column),
  OVERLAPPED.column,
  'busbw_gbps',
  'algbw_gbps',
  'samples_per_s'
];

/** The figures of which a column has an `IExtent`. */
export const LOGGED = ['logged_0', 'logged_1'] as const;

/** The values that a span has logged. */
export interface IExtent {
  /** Mean, minimum and maximum over iterations and ranks; NaN without a finite value. */
  mean: number;
  least: number;
  most: number;
  /** The first iteration with a value that is not finite, or -1. */
  broken: number;
}

/** What is drawn of a span; NaN for unknown values. */
export interface IColumn extends ISpan {
  /** The means of `MEANS`. */
  means: Float64Array;
  /** The longest iteration, in microseconds. */
  longest: number;
  /** The longest exposed communication of an iteration, in microseconds. */
  exposed: number;
  /** The minimum and maximum busbw of an iteration, in Gbit/s. */
  least: number;
  most: number;
  /** Of each of `LOGGED`. */
  logged: readonly IExtent[];
  /** The longest wait of each rank, in microseconds. */
  waits: Float32Array;
  /** The newest change of its data. */
  stamp: number;
}

/**
 * Split iterations into as many spans as there are columns. Spans are
 * cut at multiples of their length, so that a column keeps its iterations
 * (and its height) while newer ones move it to the left.
 */
export function spans(from: number, to: number, columns: number): ISpan[] {
  const length = to - from;
  if (length <= 0 || columns <= 0) {
    return [];
  }
  const step = Math.max(1, Math.ceil(length / columns));
  const result: ISpan[] = [];
  let start = from;
  while (start < to) {
    const end = Math.min(to, (Math.floor(start / step) + 1) * step);
    result.push({ from: start, to: end });
    start = end;
  }
  return result;
}

/**
 * The columns of spans. Unchanged columns are reused, so that the cost of a frame
 * depends on the new data and not on what is on the screen.
 */
export class Columns {
  /** The columns of spans for one rank (by row), or for the mean over ranks (null). */
  of(
    store: TimingStore,
    all: readonly ISpan[],
    row: number | null
  ): readonly IColumn[] {
    const known = row === this._row ? this._known : new Map<number, IColumn>();
    const columns = all.map(span => {
      const old = known.get(span.from);
      const stamp = newest(store, span);
      return old?.to === span.to && old.stamp === stamp
        ? old
        : column(store, span, row, stamp);
    });
    this._row = row;
    this._known = new Map(columns.map(one => [one.from, one]));
    return columns;
  }

  private _row: number | null = null;
  private _known = new Map<number, IColumn>();
}

/** When the iterations of a span last changed. */
export function newest(store: TimingStore, { from, to }: ISpan): number {
  let stamp = 0;
  for (let iteration = from; iteration < to; iteration++) {
    stamp = Math.max(stamp, store.version(iteration));
  }
  return stamp;
}

function column(
  store: TimingStore,
  span: ISpan,
  row: number | null,
  stamp: number
): IColumn {
  const means = Float64Array.from(MEANS, name =>
    spanMean(store, name, span, row)
  );
  let [longest, exposed, least, most] = [NaN, NaN, NaN, NaN];
  const waits = new Float32Array(store.ranks.length).fill(NaN);
  for (let iteration = span.from; iteration < span.to; iteration++) {
    longest = larger(longest, store.mean('iteration_us', iteration, row));
    exposed = larger(exposed, store.mean(EXPOSED.column, iteration, row));
    const busbw = store.mean('busbw_gbps', iteration, row);
    most = larger(most, busbw);
    least = -larger(-least, -busbw);
    const own = store.ranksOf('wait_us', iteration);
    for (let rank = 0; rank < own.length; rank++) {
      waits[rank] = larger(waits[rank], own[rank]);
    }
  }
  const logged = LOGGED.map(name => extent(store, name, span, row));
  return {
    ...span,
    means,
    longest,
    exposed,
    least,
    most,
    logged,
    waits,
    stamp
  };
}

function extent(
  store: TimingStore,
  name: Figure,
  span: ISpan,
  row: number | null
): IExtent {
  let [least, most, sum, count, broken] = [NaN, NaN, 0, 0, -1];
  for (let iteration = span.from; iteration < span.to; iteration++) {
    const ranks = store.ranksOf(name, iteration);
    const own = row === null ? ranks : ranks.subarray(row, row + 1);
    for (let at = 0; at < own.length; at++) {
      const value = own[at];
      if (Number.isFinite(value)) {
        most = larger(most, value);
        least = -larger(-least, -value);
        sum += value;
        count += 1;
      } else if (value === value && broken < 0) {
        broken = iteration;
      }
    }
  }
  return { mean: sum / count, least, most, broken };
}

/** The larger of two figures, either of which may be unknown. */
function larger(a: number, b: number): number {
  return b > a || a !== a ? b : a;
}

/**
 * The mean of a figure over the known iterations of a span; bandwidths are weighted by
 * the duration of the communication.
 *
 * @param kept - use these iterations only; null for all.
 */
export function spanMean(
  store: TimingStore,
  name: Figure,
  span: ISpan,
  row: number | null,
  kept: LeftOut | null = null
): number {
  const timed = isBandwidth(name);
  let sum = 0;
  let weights = 0;
  for (let iteration = span.from; iteration < span.to; iteration++) {
    if (kept !== null && store.leftOut(iteration) !== kept) {
      continue;
    }
    const value = store.mean(name, iteration, row);
    if (value === value) {
      const weight = timed ? store.mean('communication_us', iteration, row) : 1;
      sum += value * weight;
      weights += weight;
    }
  }
  return weights ? sum / weights : NaN;
}
