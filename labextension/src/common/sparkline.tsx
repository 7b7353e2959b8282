import React from 'react';

/** Units of the drawing: whole numbers, which are short to write. */
const WIDTH = 600;
const HEIGHT = 160;
const EDGE = 10;

/**
 * The last values as a line, the newest at the right edge; one path for each series.
 *
 * Always of one size; a screen reader has the figure beside it instead.
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
    /** Each oldest first; `null` where a value is not known. */
    series: readonly (readonly (number | null)[])[];

    /** The value at the upper edge. */
    top: number;

    /** How many values fill the width. */
    length: number;
  }
}

/** The upper edge for series without a natural limit: their largest value, never zero. */
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
 * A path from the floor over the values back to the floor, again for each unbroken
 * part: a gap stays a gap. At the edges of the drawing it goes on outside, so
 * that its ends are not seen.
 */
export function pathOf(
  values: readonly (number | null)[],
  top: number,
  length: number
): string {
  const step = WIDTH / Math.max(1, length - 1);
  const offset = length - values.length;
  let path = '';
  let x = 0;
  let open = false;
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (value === null) {
      path += open ? `V${HEIGHT}` : '';
      open = false;
      continue;
    }
    x = Math.round((offset + index) * step);
    const share = Math.min(1, Math.max(0, value / top));
    const y = Math.round(HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE));
    if (!open) {
      const start = x === 0 ? -EDGE : x;
      path += `M${start},${HEIGHT}L${start},${y}`;
      open = true;
    }
    path += `L${x},${y}`;
  }
  return open ? `${path}H${WIDTH + EDGE}V${HEIGHT}` : path;
}
