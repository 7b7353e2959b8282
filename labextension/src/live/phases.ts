/**
 * The phases of an iteration, with the colours that they have everywhere in this product.
 */

import { COLORS, DrawnFigure, figureName } from '../generated/figures';
import { ITranslate } from '../common/translate';

/** One phase, or the communication that is hidden behind the phases. */
export interface IPhase {
  column: DrawnFigure;
  color: string;
  edge: string;
}

const DATA = phase('data_us');

/** Copies from the host to the device; zero if a rank trains on CPUs. */
export const COPY = phase('copy_us');

const FORWARD = phase('forward_us');
const BACKWARD = phase('backward_us');
const OPTIMIZER = phase('optimizer_us');
const OTHER = phase('other_us');

/** Communication that the iteration waits for. */
export const EXPOSED = phase('exposed_us');

/** Communication hidden behind compute: drawn next to the stack, not in it. */
export const OVERLAPPED = phase('overlapped_us');

/** In the order of an iteration. */
export const IN_TIME: readonly IPhase[] = [
  DATA,
  COPY,
  FORWARD,
  BACKWARD,
  EXPOSED,
  OPTIMIZER,
  OTHER
];

/** From the bottom of a stack to its top: exposed communication on top. */
export const IN_STACK: readonly IPhase[] = [
  OTHER,
  DATA,
  COPY,
  OPTIMIZER,
  FORWARD,
  BACKWARD,
  EXPOSED
];

/** The phase's name in the user's language. */
export function phaseName(one: IPhase, trans: ITranslate): string {
  return figureName(one.column, trans);
}

function phase(column: DrawnFigure): IPhase {
  return { column, color: COLORS[column], edge: darker(COLORS[column]) };
}

/** The colour at 65 % of its brightness: the one-pixel edge of its bars. */
export function darker(color: string): string {
  const channels = [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
  const hex = channels.map(channel =>
    Math.round(channel * 0.65)
      .toString(16)
      .padStart(2, '0')
  );
  return `#${hex.join('')}`;
}
