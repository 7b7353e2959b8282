/**
 * Phases of the iterations over time: a stack per iteration with exposed
 * communication on top, and overlapped communication hatched below zero.
 */

import uPlot from 'uplot';

import { IColumn, ISpan, MEANS } from './decimate';
import { tick } from './format';
import { axisEnd } from './layout';
import { overlapPattern } from './overlappattern';
import { IN_STACK, IPhase, OVERLAPPED } from './phases';
import { IScene } from './plot';
import { IEarlierRun } from './protocol';
import { IRange } from './range';
import { IPlace, TimeChart, ValuesOfSpans } from './timechart';

/** Bars narrower than this many device pixels have no gap between them. */
const GAP_FROM = 5;

export class PhaseChart extends TimeChart {
  constructor(place: IPlace) {
    super(place.theme);
    this.plot = this._makePlot(place, {
      bottomAxis: false,
      y: {
        values: (_, splits) => splits.map(ms => tick(Math.abs(ms))),
        space: 28
      },
      yScale: { range: () => [-this._below, this._above] },
      series: [{ show: true, paths: () => null, points: { show: false } }],
      draw: plot => this._draw(plot)
    });
  }

  readonly plot: uPlot;

  protected _values(scene: IScene): ValuesOfSpans[] {
    const { columns } = scene;
    this._columns = columns;
    const each = (at: number): Float64Array =>
      Float64Array.from(columns, one => one.means[at]);
    this._phases = IN_STACK.map((_, at) => each(at));
    this._hidden = each(MEANS.indexOf(OVERLAPPED.column));
    const totals = columns.map((_, i) => total(this._phases, i));
    this._earlier = scene.earlier ? pointsOf(scene.earlier, scene) : [];
    const times = this._earlier.map(({ us }) => us);
    this._above = axisEnd([...columns.map(one => one.longest), ...times]) / 1e3;
    const hidden = this._hidden.some(value => value > 0);
    this._below = hidden
      ? Math.min(axisEnd(this._hidden) / 1e3, this._above)
      : 0;
    return [totals.map(us => us / 1e3)];
  }

  private _draw(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const base = new Float64Array(this._columns.length);
    IN_STACK.forEach((phase, index) => {
      this._layer(plot, phase, this._phases[index], base);
    });
    this._layer(
      plot,
      OVERLAPPED,
      this._hidden.map(us => -us),
      new Float64Array(base.length)
    );
    this._peaks(plot, base);
    this._zero(plot);
    this._cutOff(plot, base);
    this._drawEarlier(plot);
    ctx.restore();
  }

  /** Draw one phase of all iterations on top of `base`, and add it to `base`. */
  private _layer(
    plot: uPlot,
    phase: IPhase,
    values: Float64Array,
    base: Float64Array
  ): void {
    const { ctx } = plot;
    const fill = new Path2D();
    const edge = new Path2D();
    this._columns.forEach((span, i) => {
      const value = values[i];
      if (!value) {
        return; // zero, or NaN if unknown
      }
      const box = this._box(plot, span, base[i], base[i] + value);
      base[i] += value;
      fill.rect(box.x, box.y, box.width, box.height);
      outline(edge, box, value < 0);
    });
    ctx.fillStyle =
      phase === OVERLAPPED
        ? overlapPattern(ctx, phase.color, this._theme)
        : phase.color;
    ctx.fill(fill);
    ctx.strokeStyle = phase.edge;
    ctx.lineWidth = uPlot.pxRatio;
    ctx.stroke(edge);
  }

  private _box(plot: uPlot, span: ISpan, low: number, high: number): IBox {
    const left = plot.valToPos(span.from - 0.5, 'x', true);
    const right = plot.valToPos(span.to - 0.5, 'x', true);
    const gap = right - left >= GAP_FROM * uPlot.pxRatio ? uPlot.pxRatio : 0;
    const [a, b] = [low, high].map(us => plot.valToPos(us / 1e3, 'y', true));
    const x = Math.round(left);
    return {
      x,
      y: Math.min(a, b),
      width: Math.max(1, Math.round(right) - x - gap),
      height: Math.abs(a - b),
      apart: gap > 0
    };
  }

  private _zero(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const y = Math.round(plot.valToPos(0, 'y', true)) + 0.5;
    ctx.strokeStyle = this._theme.muted;
    ctx.lineWidth = uPlot.pxRatio;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }

  /** Mark the longest iteration above each bar of several iterations. */
  private _peaks(plot: uPlot, tops: Float64Array): void {
    const { ctx } = plot;
    const path = new Path2D();
    this._columns.forEach((span, i) => {
      if (span.to - span.from > 1 && span.longest > tops[i]) {
        const box = this._box(plot, span, tops[i], span.longest);
        path.rect(box.x, box.y, box.width, uPlot.pxRatio);
      }
    });
    ctx.fillStyle = this._theme.muted;
    ctx.fill(path);
  }

  /** Draw a notch on each bar that exceeds the axis. */
  private _cutOff(plot: uPlot, tops: Float64Array): void {
    const { ctx, bbox } = plot;
    const size = 4 * uPlot.pxRatio;
    ctx.fillStyle = this._theme.text;
    this._columns.forEach((span, i) => {
      if (Math.max(tops[i], span.longest || 0) / 1e3 <= this._above) {
        return;
      }
      const x = plot.valToPos((span.from + span.to - 1) / 2, 'x', true);
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top + size * 1.5);
      ctx.lineTo(x + size, bbox.top + size * 1.5);
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    });
  }

  /** Draw the times of the earlier run, faint, on a halo that separates it from the bars. */
  private _drawEarlier(plot: uPlot): void {
    const { ctx } = plot;
    const line = new Path2D();
    for (const { at, us, apart } of this._earlier) {
      const x = plot.valToPos(at, 'x', true);
      const y = plot.valToPos(us / 1e3, 'y', true);
      if (apart) {
        line.moveTo(x, y);
      } else {
        line.lineTo(x, y);
      }
    }
    ctx.globalAlpha = 0.6;
    ctx.lineJoin = 'round';
    for (const [color, width] of [
      [this._theme.background, 4],
      [this._theme.text, 1.5]
    ] as const) {
      ctx.strokeStyle = color;
      ctx.lineWidth = width * uPlot.pxRatio;
      ctx.stroke(line);
    }
  }

  private _above = 1;
  private _earlier: readonly IPoint[] = [];
  private _below = 0;
  private _columns: readonly IColumn[] = [];
  private _phases: Float64Array[] = IN_STACK.map(() => new Float64Array(0));
  private _hidden = new Float64Array(0);
}

/** A time of the earlier run, at the middle of its iterations. */
interface IPoint {
  at: number;
  us: number;
  /** Whether the time before it is unknown. */
  apart: boolean;
}

/** The known times of a run from one iteration before a range to one after it. */
function pointsOf(
  { each, times_us }: IEarlierRun,
  { from, to }: IRange
): IPoint[] {
  const points: IPoint[] = [];
  const first = Math.max(0, Math.floor(from / each) - 1);
  const end = Math.min(times_us.length, Math.ceil(to / each) + 1);
  for (let index = first; index < end; index++) {
    const us = times_us[index];
    if (us !== null) {
      const apart = index === first || times_us[index - 1] === null;
      points.push({ at: index * each + (each - 1) / 2, us, apart });
    }
  }
  return points;
}

interface IBox {
  x: number;
  y: number;
  width: number;
  height: number;
  /** Whether there is a gap to the next bar. */
  apart: boolean;
}

/** The full edge of a bar with a gap around it, or else its outer edge only. */
function outline(path: Path2D, box: IBox, downward: boolean): void {
  const half = uPlot.pxRatio / 2;
  const [x, y] = [box.x + half, box.y + half];
  if (box.apart && box.height > 2 * half) {
    path.rect(x, y, box.width - 2 * half, box.height - 2 * half);
    return;
  }
  const at = downward ? box.y + box.height - half : y;
  path.moveTo(box.x, at);
  path.lineTo(box.x + box.width, at);
}

function total(phases: readonly Float64Array[], i: number): number {
  let sum = NaN;
  for (const values of phases) {
    const value = values[i];
    if (value === value) {
      sum = (sum === sum ? sum : 0) + value;
    }
  }
  return sum;
}
