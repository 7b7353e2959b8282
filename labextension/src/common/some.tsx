import { TranslationBundle } from '@jupyterlab/translation';
import React, { useState } from 'react';

/** How much of a long list is shown, and how to change that. */
export interface ISome<T> {
  readonly shown: readonly T[];
  /** How many are not shown. */
  readonly left: number;
  /** How many more at a time; 0 where all fit from the start. */
  readonly step: number;
  more: () => void;
  fewer: () => void;
}

/**
 * The first of a list, and more of it a step at a time: a page draws no more at once than
 * it can without a pause, however long a list is.
 */
export function useSome<T>(items: readonly T[], first: number): ISome<T> {
  const [most, setMost] = useState(first);
  return {
    shown: items.slice(0, most),
    left: Math.max(0, items.length - most),
    step: items.length > first ? first : 0,
    more: () => setMost(most + first),
    fewer: () => setMost(first)
  };
}

/** The button below a list of which only some is shown; nothing where all fit. */
export function More(props: {
  some: Pick<ISome<unknown>, 'left' | 'step' | 'more' | 'fewer'>;
  /** What is listed, in the plural: "GPUs". */
  what: string;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { some, trans, what } = props;
  const { left, step } = some;
  if (step === 0) {
    return null;
  }
  // One button in both states, so that the focus stays where it is.
  return (
    <button
      type="button"
      className="jp-gw-More"
      onClick={left > 0 ? some.more : some.fewer}
    >
      {left === 0
        ? trans.__('Show fewer %1', what)
        : left <= step
          ? trans.__('%1 more %2', left, what)
          : trans.__('%1 more %2: show %3', left, what, step)}
    </button>
  );
}
