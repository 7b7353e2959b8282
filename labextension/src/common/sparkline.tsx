import React from 'react';

/** Units of the drawing; integers keep the path short. */
const WIDTH = 600;
const HEIGHT = 160;
const EDGE = 10;
const SPAN = HEIGHT - 2 * EDGE;

/**
 * The last values as a line, the newest at the right edge; one path for each series.
 *
 * Always the same size; a screen reader reads the figure next to it instead.
 */
export function Sparkline(props: Sparkline.IProps): JSX.Element {
  const { length, series, top } = props;
  return (
    <svg
      className="jp-gw-Sparkline"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      {series.map((values, index) => (
        <path
          key={index}
          className={`jp-gw-Sparkline-line jp-gw-mod-${index}`}
          d={pathOf(values, top, length)}
        />
      ))}
    </svg>
  );
}

export namespace Sparkline {
  export interface IProps {
    /** Each series from the oldest value; `null` for unknown values. */
    series: readonly (readonly (number | null)[])[];

    /** The value at the upper edge. */
    top: number;

    /** How many values fill the width. */
    length: number;
  }
}

/** The upper edge for series without a natural limit: the largest value, never zero. */
export function topOf(
  series: readonly (readonly (number | null)[])[],
  least: number
): number {
  let top = least;
  for (const values of series) {
    for (const value of values) {
      top = Math.max(top, value ?? 0);
    }
  }
  return top;
}

/**
 * A line over the values, with a separate run after each gap.
 *
 * The newest run continues outside the drawing and returns below its first value, so
 * that the area below is filled. A run before a gap returns along itself, which fills
 * nothing; an edge down to zero would appear as a zero.
 */
export function pathOf(
  values: readonly (number | null)[],
  top: number,
  length: number
): string {
  const step = WIDTH / Math.max(1, length - 1);
  const offset = length - values.length;
  let path = '';
  let run: string[] = [];
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (value !== null) {
      const x = Math.round((offset + index) * step);
      const share = Math.min(1, Math.max(0, value / top));
      run.push(`${x},${Math.round(HEIGHT - EDGE - share * SPAN)}`);
    } else if (run.length > 0) {
      path += `M${run.join('L')}L${run.reverse().join('L')}`;
      run = [];
    }
  }
  if (run.length === 0) {
    return path;
  }
  const start = run[0].split(',')[0];
  const around = `H${WIDTH + EDGE}V${HEIGHT + EDGE}H${start}`;
  return `${path}M${run.join('L')}${around}`;
}
