import React from 'react';

import { LENGTH } from './history';

const WIDTH = 60;
const HEIGHT = 16;

/**
 * The last minute as a line, the newest value at the right edge.
 *
 * Always of one size; a screen reader has the figure beside it instead.
 */
export function Sparkline(props: Sparkline.IProps): JSX.Element {
  const { series, top } = props;
  return (
    <svg
      className="jp-gw-Sparkline"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <line
        className="jp-gw-Sparkline-floor"
        x1={0}
        x2={WIDTH}
        y1={HEIGHT - 0.5}
        y2={HEIGHT - 0.5}
      />
      {series.map((values, index) => (
        <g key={index} className={`jp-gw-Sparkline-series jp-gw-mod-${index}`}>
          {Private.runs(values, top).map(run => (
            <React.Fragment key={run.start}>
              <path className="jp-gw-Sparkline-area" d={run.area} />
              <path className="jp-gw-Sparkline-line" d={run.line} />
            </React.Fragment>
          ))}
        </g>
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
  }
}

/** The upper edge for series without a natural limit: their largest value, never zero. */
export function topOf(
  series: readonly (readonly (number | null)[])[],
  least: number
): number {
  return series
    .flat()
    .reduce<number>((top, value) => Math.max(top, value ?? 0), least);
}

namespace Private {
  interface IRun {
    start: number;
    line: string;
    area: string;
  }

  /** The unbroken parts of a series: a gap stays a gap. */
  export function runs(
    values: readonly (number | null)[],
    top: number
  ): IRun[] {
    const found: IRun[] = [];
    for (let start = 0; start < values.length; start++) {
      let end = start;
      while (end < values.length && values[end] !== null) {
        end++;
      }
      if (end > start) {
        found.push(
          run(values.slice(start, end) as number[], start, values.length, top)
        );
        start = end;
      }
    }
    return found;
  }

  function run(
    values: number[],
    start: number,
    count: number,
    top: number
  ): IRun {
    const offset = LENGTH - count + start;
    const x = (index: number): string =>
      (((offset + index) / (LENGTH - 1)) * WIDTH).toFixed(2);
    const points = values.map((value, index) => `${x(index)},${y(value, top)}`);
    const line = `M${points.join('L')}`;
    const area = `${line}L${x(values.length - 1)},${HEIGHT}L${x(0)},${HEIGHT}Z`;
    return { start, line, area };
  }

  function y(value: number, top: number): string {
    const share = Math.min(1, Math.max(0, value / top));
    return (HEIGHT - 1 - share * (HEIGHT - 2)).toFixed(2);
  }
}
