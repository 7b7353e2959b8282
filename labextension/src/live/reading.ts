/**
 * The input of the bars and the readout: one iteration, or the mean of a selection.
 */

import { Figure } from './protocol';
import { Selection } from './selection';
import { TimingStore } from './store';

/** A figure of one rank (by row) or the mean over ranks (null); NaN if unknown. */
export type IReading = (name: Figure, row: number | null) => number;

export function ofIteration(store: TimingStore, iteration: number): IReading {
  return (name, row) => store.mean(name, iteration, row);
}

/** The mean over a selection, which has no end time. */
export function ofSelection(selection: Selection): IReading {
  return (name, row) => (name === 'end_s' ? NaN : selection.mean(name, row));
}
