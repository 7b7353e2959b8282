/**
 * Bandwidth over time: busbw, algbw, and what the link's rate allows.
 */

import uPlot from 'uplot';

import { spanMeans } from './decimate';
import { tick } from './format';
import { axisEnd } from './layout';
import { IScene } from './plot';
import { IPlace, TimeChart, ValuesOfSpans } from './timechart';

/** The nominal line is drawn up to this many times the measured bandwidth. */
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
        { stroke: () => this._theme.muted, width: 1, dash: [8, 4], points }
      ],
      draw: plot => this._nameAxis(plot)
    });
  }

  readonly plot: uPlot;

  /** Whether the nominal rate is so far above that its line is left out. */
  get nominalOffScale(): boolean {
    return this._offScale;
  }

  protected _values(scene: IScene): ValuesOfSpans[] {
    const { store, spans, row, nominal } = scene;
    const [bus, alg] = spanMeans(
      store,
      ['busbw_gbps', 'algbw_gbps'],
      spans,
      row
    );
    const measured = axisEnd([...bus, ...alg]);
    this._offScale = nominal > NEAR * measured;
    const line = nominal > 0 && !this._offScale;
    this._top = line ? Math.max(measured, axisEnd([nominal])) : measured;
    return [known(bus), known(alg), spans.map(() => (line ? nominal : null))];
  }

  /** Say at the left what the numbers below the charts are. */
  private _nameAxis(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.font = this._theme.font.replace('11px', `${11 * uPlot.pxRatio}px`);
    ctx.fillStyle = this._theme.muted;
    ctx.textAlign = 'right';
    ctx.textBaseline = 'top';
    const gap = 6 * uPlot.pxRatio;
    const y = bbox.top + bbox.height + gap + uPlot.pxRatio;
    ctx.fillText(this._axis, bbox.left - gap, y);
    ctx.restore();
  }

  private _top = 1;
  private _offScale = false;
}

/** As uPlot has it: null is a gap in the line. */
function known(values: Float64Array): ValuesOfSpans {
  return Array.from(values, value => (value === value ? value : null));
}
