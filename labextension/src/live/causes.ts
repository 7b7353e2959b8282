/** The verdict of a cell, as the kernel sends it. */

import { Known } from '../schema/known';

/** One reason why iterations take as long as they do. */
export interface ICause {
  name: string;
  evidence: string;
  change: string;
  /** Predicted saving per iteration, and its share of the iteration. */
  saving_us: Known<number>;
  saving_share: Known<number>;
  /** Whether the saving is only an upper bound. */
  bound: boolean;
  /** In which interval the saving is, in words. */
  uncertainty: string;
  /** What to measure to know more; empty if nothing is missing. */
  measure: string;
}

/** What an iteration takes, and why. */
export interface IVerdict {
  text: string;
  cell: number;
  first_iteration: number;
  last_iteration: number;
  causes: ICause[];
}
