/**
 * Bandwidth over time: busbw, algbw, the nominal rate of the link, and the calibrated
 * bandwidth of the fabric.
 */

import uPlot from 'uplot';

import { IColumn, MEANS } from './decimate';
import { tick } from './format';
import { axisEnd } from './layout';
import { IScene } from './plot';
import { IPlace, TimeChart, ValuesOfSpans } from './timechart';

/** A line is drawn up to this multiple of the measured bandwidth. */
const NEAR = 4;

export class BandwidthChart extends TimeChart {
  constructor(
    place: IPlace,
    private _axis: string
  ) {
    super(place.theme);
    const points = { show: false };
    this.plot = this._makePlot(place, {
      bottomAxis: true,
      y: {
        values: (_, splits) => splits.map(tick),
        space: 18
      },
      yScale: { range: () => [0, this._top] },
      series: [
        { stroke: () => this._theme.text, width: 1.5, points },
        { stroke: () => this._theme.muted, width: 1, dash: [2, 2], points },
        { stroke: () => this._theme.muted, width: 1, dash: [8, 4], points },
        {
          stroke: () => this._theme.text,
          width: 1,
          dash: [12, 3, 2, 3],
          points
        }
      ],
      draw: plot => {
        this._spread(plot);
        this._nameAxis(plot);
      }
    });
  }

  readonly plot: uPlot;

  /** Whether a line is omitted because it is far above the scale. */
  readonly offScale = { nominal: false, calibrated: false };

  protected _values(scene: IScene): ValuesOfSpans[] {
    const { columns } = scene;
    this._columns = columns;
    const bus = each(columns, 'busbw_gbps');
    const alg = each(columns, 'algbw_gbps');
    const measured = axisEnd([...columns.map(one => one.most), ...alg]);
    this._top = measured;
    const lines = (['nominal', 'calibrated'] as const).map(name => {
      const gbps = scene[name];
      this.offScale[name] = gbps > NEAR * measured;
      const drawn = gbps > 0 && !this.offScale[name];
      this._top = drawn ? Math.max(this._top, axisEnd([gbps])) : this._top;
      return columns.map(() => (drawn ? gbps : null));
    });
    return [known(bus), known(alg), ...lines];
  }

  /** Draw a bar from the minimum to the maximum behind each column of several iterations. */
  private _spread(plot: uPlot): void {
    const { ctx } = plot;
    ctx.save();
    ctx.globalCompositeOperation = 'destination-over';
    ctx.fillStyle = this._theme.grid;
    for (const { from, to, least, most } of this._columns) {
      if (to - from > 1 && most > least) {
        const x = Math.round(plot.valToPos(from - 0.5, 'x', true));
        const end = Math.round(plot.valToPos(to - 0.5, 'x', true));
        const top = plot.valToPos(Math.min(most, this._top), 'y', true);
        const height = plot.valToPos(least, 'y', true) - top;
        ctx.fillRect(x, top, Math.max(1, end - x), height);
      }
    }
    ctx.restore();
  }

  /** Name the numbers below the charts at the left. */
  private _nameAxis(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.font = this._theme.font.replace('11px', `${11 * uPlot.pxRatio}px`);
    ctx.fillStyle = this._theme.muted;
    ctx.textAlign = 'right';
    ctx.textBaseline = 'top';
    const gap = 6 * uPlot.pxRatio;
    const y = bbox.top + bbox.height + gap + uPlot.pxRatio;
    const right = bbox.left - gap;
    ctx.fillText(this._axis, right, y, right); // no wider than the space
    ctx.restore();
  }

  private _top = 1;
  private _columns: readonly IColumn[] = [];
}

function each(
  columns: readonly IColumn[],
  name: 'busbw_gbps' | 'algbw_gbps'
): Float64Array {
  const at = MEANS.indexOf(name);
  return Float64Array.from(columns, one => one.means[at]);
}

/** In uPlot, null is a gap in the line. */
function known(values: Float64Array): ValuesOfSpans {
  return Array.from(values, value => (value === value ? value : null));
}
