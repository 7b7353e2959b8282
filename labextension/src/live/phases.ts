/**
 * The phases of an iteration, with the same colours everywhere in this
 * product (Okabe and Ito's palette; `workbench/widgets/phases.py` in Python).
 */

import { Figure } from './protocol';
import { ITranslate } from '../common/translate';

/** One phase, or the communication that is hidden behind the phases. */
export interface IPhase {
  column: Figure;
  /** Its name, to be translated by `phaseName`. */
  label: string;
  color: string;
  edge: string;
}

const DATA = phase('data_us', 'data', '#56B4E9');

/** Copies from the host to the device; zero if a rank trains on CPUs. */
export const COPY = phase('copy_us', 'copy', '#F0E442');

const FORWARD = phase('forward_us', 'forward', '#009E73');
const BACKWARD = phase('backward_us', 'backward', '#0072B2');
const OPTIMIZER = phase('optimizer_us', 'optimizer', '#CC79A7');
const OTHER = phase('other_us', 'other', '#999999');

/** Communication that the iteration waits for. */
export const EXPOSED = phase('exposed_us', 'exposed', '#D55E00');

/** Communication hidden behind compute: drawn next to the stack, not in it. */
export const OVERLAPPED = phase('overlapped_us', 'overlapped', '#E69F00');

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
  const names: Record<string, string> = {
    data: trans.__('data'),
    copy: trans.__('copy'),
    forward: trans.__('forward'),
    backward: trans.__('backward'),
    exposed: trans.__('exposed'),
    optimizer: trans.__('optimizer'),
    other: trans.__('other'),
    overlapped: trans.__('overlapped')
  };
  return names[one.label];
}

function phase(column: Figure, label: string, color: string): IPhase {
  return { column, label, color, edge: darker(color) };
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
