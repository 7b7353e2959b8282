/**
 * What the bars and the readout read: one iteration, or the mean of a stretch.
 */

import { Figure } from './protocol';
import { TimingStore } from './store';
import { Stretch } from './stretch';

/** A figure of one rank (by row) or the mean over ranks (null); NaN where not known. */
export type IReading = (name: Figure, row: number | null) => number;

export function ofIteration(store: TimingStore, iteration: number): IReading {
  return (name, row) => store.mean(name, iteration, row);
}

/** The mean over a stretch; a stretch has no moment at which it ended. */
export function ofStretch(stretch: Stretch): IReading {
  return (name, row) => (name === 'end_s' ? NaN : stretch.mean(name, row));
}
