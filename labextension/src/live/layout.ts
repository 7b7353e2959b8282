/**
 * The layout of the view, computed from its width.
 */

/** Below this width in CSS pixels the two columns are stacked. */
export const NARROW = 640;

/** Space for the labels of the y axes, equal in all charts so that they are aligned. */
export const AXIS_WIDTH = 52;

export interface ILayout {
  narrow: boolean;
  /** Whether the charts are wide enough for the legend of all phases. */
  legend: boolean;
  /** Width of the charts over time. */
  left: number;
  /** Width of the column of one iteration. */
  right: number;
  /** Heights of the plots, without their titles. */
  phases: number;
  waiting: number;
  bandwidth: number;
  /** Height of the bars of one iteration. */
  bars: number;
}

const GAP = 16;

/** Narrower charts only name the two kinds of communication. */
const LEGEND = 660;

const WIDE = { phases: 170, bandwidth: 78, bars: 166 };
const SMALL = { phases: 150, bandwidth: 74 };

/** Height of the waiting strip in pixels per rank, less for many ranks. */
const ROW = 14;
const ROW_OF_MANY = 3;
const STRIP = { least: 48, few: 70, most: 216 };

/** Compute the layout for a width in CSS pixels and a number of ranks. */
export function layout(width: number, ranks: number): ILayout {
  const waiting = Math.max(
    Math.min(STRIP.few, Math.max(STRIP.least, ROW * (ranks + 1))),
    Math.min(STRIP.most, ROW_OF_MANY * ranks)
  );
  if (width < NARROW) {
    const bars = Math.min(172, 34 + 26 * Math.max(1, ranks));
    return {
      narrow: true,
      legend: width >= LEGEND,
      left: width,
      right: width,
      ...SMALL,
      waiting,
      bars
    };
  }
  const right = Math.round(Math.min(420, Math.max(316, width * 0.33)));
  const left = width - right - GAP;
  return {
    narrow: false,
    legend: left >= LEGEND,
    left,
    right,
    waiting,
    ...WIDE,
    bars: WIDE.bars + Math.max(0, waiting - STRIP.few)
  };
}

/**
 * The upper end of an axis: a round number above nearly all values, so that it
 * changes rarely. Outliers beyond twice the 95th percentile (such as a warm-up
 * iteration) are cut off, so that they do not flatten the other values.
 */
export function axisEnd(values: ArrayLike<number>): number {
  const known = Float64Array.from(values)
    .filter(value => value > 0 && Number.isFinite(value))
    .sort();
  if (known.length === 0) {
    return 1;
  }
  const most =
    known[Math.min(known.length - 1, Math.floor(known.length * 0.95))];
  const top = known[known.length - 1];
  return roundUp((top <= 2 * most ? top : 1.25 * most) * 1.04);
}

/** The next value at or above that is 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 x 10^n. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
  const scaled = value / power;
  return (steps.find(step => step >= scaled - 1e-9) ?? 10) * power;
}

/** Which of `count` rows get a label, if a label needs `need` pixels. */
export function labelledRows(
  count: number,
  height: number,
  need: number
): number[] {
  const step = Math.max(1, Math.ceil((need * count) / Math.max(1, height)));
  const rows: number[] = [];
  for (let row = 0; row < count; row += step) {
    rows.push(row);
  }
  return rows;
}
