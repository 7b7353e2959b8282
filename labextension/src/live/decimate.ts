/**
 * Thousands of iterations on hundreds of pixels: one mean per pixel column.
 */

import { Figure } from './protocol';
import { TimingStore } from './store';

/** Iterations drawn together; `to` is exclusive. */
export interface ISpan {
  from: number;
  to: number;
}

/**
 * Split iterations into as many spans as there is room for columns. Spans are
 * cut at multiples of their own length, so that a column keeps its iterations
 * (and so its height) while newer ones push it to the left.
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

/** The mean of a figure over the iterations of a span that are known. */
export function spanMean(
  store: TimingStore,
  name: Figure,
  span: ISpan,
  row: number | null
): number {
  if (span.to - span.from === 1) {
    return store.mean(name, span.from, row);
  }
  let sum = 0;
  let known = 0;
  for (let iteration = span.from; iteration < span.to; iteration++) {
    const value = store.mean(name, iteration, row);
    if (value === value) {
      sum += value;
      known++;
    }
  }
  return known ? sum / known : NaN;
}

/** The mean of several figures, one array per figure, one entry per span. */
export function spanMeans(
  store: TimingStore,
  names: readonly Figure[],
  all: readonly ISpan[],
  row: number | null
): Float64Array[] {
  return names.map(name =>
    Float64Array.from(all, span => spanMean(store, name, span, row))
  );
}
