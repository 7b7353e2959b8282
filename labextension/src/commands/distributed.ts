/** The cell magic that runs a cell on the ranks, added to or removed from a cell's source. */

const LINE = '%%distributed\n';

/** The line of the magic, after lines without content. */
const DISTRIBUTED = /^(?:[ \t]*\n)*(%%distributed(?:[ \t][^\n]*)?(?:\n|$))/;

const OTHER_MAGIC = /^(?:[ \t]*\n)*%%/;

/** A part of a cell's source, and what replaces it. */
export interface IEdit {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

export function isDistributed(source: string): boolean {
  return DISTRIBUTED.test(source);
}

/** Whether the cell has another cell magic, with which it cannot run on the ranks. */
export function hasOtherMagic(source: string): boolean {
  return OTHER_MAGIC.test(source) && !isDistributed(source);
}

/** Add the magic, or remove its line with its options; `null` if nothing changes. */
export function distributedEdit(source: string, on: boolean): IEdit | null {
  const match = DISTRIBUTED.exec(source);
  if (on) {
    return match || hasOtherMagic(source)
      ? null
      : { start: 0, end: 0, text: LINE };
  }
  if (!match) {
    return null;
  }
  const end = match[0].length;
  return { start: end - match[1].length, end, text: '' };
}
