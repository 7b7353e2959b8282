import { TranslationBundle } from '@jupyterlab/translation';
import React, { useState } from 'react';

/** The visible items of a long list, and how to change their number. */
export interface ISome<T> {
  readonly shown: readonly T[];
  /** Number of hidden items. */
  readonly left: number;
  /** Number of items added at a time; 0 if all fit initially. */
  readonly step: number;
  more: () => void;
  fewer: () => void;
}

/**
 * The first items of a list, and more of them step by step, so that a page never draws
 * more at a time than it can without a pause.
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

/** The button below a partly shown list; nothing if all items fit. */
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
  // One button in both states keeps the focus.
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
