/**
 * The common properties of the three charts over time: one x axis in iterations, one
 * cursor, brushing, the theme.
 */

import uPlot from 'uplot';

import { IColumn, ISpan } from './decimate';
import { count } from './format';
import { AXIS_WIDTH } from './layout';
import { IEarlierRun, IRankPlace } from './protocol';
import { ITheme } from './theme';

/** Half of the width of a number below the charts, in CSS pixels. */
const EDGE = 18;

/** The bandwidths drawn as lines, in Gbit/s; NaN if unknown. */
export interface ILines {
  /** The rate of the link. */
  nominal: number;
  /** The measured bandwidth of this fabric. */
  calibrated: number;
  /** The relative error of the calibrated bandwidth; NaN if unknown. */
  error: number;
}

/** What is drawn: a range of iterations (`to` exclusive) in columns. */
export interface IScene extends ILines {
  from: number;
  to: number;
  columns: readonly IColumn[];
  ranks: readonly IRankPlace[];
  /** The stored run with which the iteration times are compared. */
  earlier: IEarlierRun | null;
  /** By what figures of one rank are multiplied, for all ranks; 1 if not given. */
  factor?: number;
}

/** Actions of the user on a chart. */
export interface IGestures {
  hover(iteration: number | null): void;
  select(from: number, to: number): void;
  reset(): void;
}

export interface IPlotOptions {
  host: HTMLElement;
  sync: string;
  theme: () => ITheme;
  range: () => [number, number];
  gestures: IGestures;
  bottomAxis: boolean;
  y: Partial<uPlot.Axis>;
  yScale: uPlot.Scale;
  series: uPlot.Series[];
  draw: (plot: uPlot) => void;
}

/** Create a plot with the x axis, the cursor and the brush of all charts. */
export function makePlot(options: IPlotOptions): uPlot {
  const { host, theme, range, series, yScale } = options;
  const [muted, grid] = [() => theme().muted, () => theme().grid];
  const common = { stroke: muted, font: theme().font, ticks: { show: false } };
  return new uPlot(
    {
      width: 300,
      height: 60,
      legend: { show: false },
      padding: [8, 4, options.bottomAxis ? 0 : 6, 0],
      cursor: cursor(options),
      scales: { x: { time: false, range: () => range() }, y: yScale },
      axes: [
        iterationAxis(common, options.bottomAxis),
        {
          ...common,
          size: AXIS_WIDTH,
          gap: 4,
          grid: { stroke: grid, width: 1 },
          ...options.y
        }
      ],
      series: [{}, ...series],
      hooks: {
        draw: [options.draw],
        setSelect: [onSelect(options)],
        setCursor: [onCursor(options)]
      }
    },
    [[], ...series.map(() => [])] as unknown as uPlot.AlignedData,
    host
  );
}

function iterationAxis(common: uPlot.Axis, show: boolean): uPlot.Axis {
  return {
    ...common,
    show,
    size: 22,
    gap: 6,
    space: 70,
    grid: { show: false },
    incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6],
    // A number too close to an edge would overlap the name of the axis, or be cut off.
    values: (plot, splits) => {
      const end = plot.bbox.width / uPlot.pxRatio - EDGE;
      return splits.map(at => {
        const left = plot.valToPos(at, 'x');
        return left < EDGE || left > end ? '' : count(at);
      });
    }
  };
}

function cursor(options: IPlotOptions): uPlot.Cursor {
  return {
    y: false,
    points: { show: false },
    sync: { key: options.sync, setSeries: false, scales: ['x', null] },
    drag: { x: true, y: false, setScale: false, dist: 4 },
    bind: {
      dblclick: () => () => {
        options.gestures.reset();
        return null;
      }
    }
  };
}

/** The iteration under a position in CSS pixels from the plot's left edge. */
function iterationAt(plot: uPlot, left: number): number {
  return Math.round(plot.posToVal(left, 'x'));
}

function onSelect(options: IPlotOptions): (plot: uPlot) => void {
  return plot => {
    const { left, width } = plot.select;
    if (width > 3) {
      const from = iterationAt(plot, left);
      options.gestures.select(from, iterationAt(plot, left + width) + 1);
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }
  };
}

function onCursor(options: IPlotOptions): (plot: uPlot) => void {
  return plot => {
    const left = plot.cursor.left ?? -1;
    const known = left >= 0 && plot.data[0].length > 0;
    options.gestures.hover(known ? iterationAt(plot, left) : null);
  };
}

/** The middle of each span, as x values for uPlot. */
export function middles(all: readonly ISpan[]): number[] {
  return all.map(span => (span.from + span.to - 1) / 2);
}
