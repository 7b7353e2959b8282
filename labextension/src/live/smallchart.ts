/**
 * A small chart of a training's own progress: samples per second, or what a cell logs.
 */

import uPlot from 'uplot';

import { IColumn, IExtent } from './decimate';
import { tick } from './format';
import { IScene } from './plot';
import { IPlace, TimeChart, ValuesOfSpans } from './timechart';

/** Width and height of the mark of a value that is not finite, in CSS pixels. */
const MARK = 6;

/** Share of the range of values that stays free above and below them. */
const FREE = 0.06;

export class SmallChart extends TimeChart {
  /** `read` returns what is drawn of a column. */
  constructor(
    place: IPlace,
    private _read: (column: IColumn, scene: IScene) => IExtent
  ) {
    super(place.theme);
    this.plot = this._makePlot(place, {
      bottomAxis: false,
      y: { values: (_, splits) => splits.map(tick), space: 18 },
      yScale: { range: () => this._range },
      series: [
        {
          stroke: () => this._theme.text,
          width: 1.5,
          points: { show: false }
        }
      ],
      draw: plot => this._behind(plot)
    });
  }

  readonly plot: uPlot;

  /** The newest finite mean, and the first iteration without one; NaN and -1 for none. */
  readonly state = { latest: NaN, broken: -1 };

  protected _values(scene: IScene): ValuesOfSpans[] {
    this._columns = scene.columns;
    this._extents = scene.columns.map(column => this._read(column, scene));
    this.state.latest = NaN;
    this.state.broken = -1;
    let [least, most] = [Infinity, -Infinity];
    for (const { mean, broken } of this._extents) {
      if (mean === mean) {
        this.state.latest = mean;
        [least, most] = [Math.min(least, mean), Math.max(most, mean)];
      }
      this.state.broken = this.state.broken < 0 ? broken : this.state.broken;
    }
    const some = most >= least;
    const free = some ? (most - least) * FREE || Math.abs(most) * FREE || 1 : 0;
    this._range = some ? [least - free, most + free] : [0, 1];
    return [
      this._extents.map(({ mean, broken }) =>
        mean === mean && broken < 0 ? mean : null
      )
    ];
  }

  /** Draw the range over ranks behind the line, and a mark where a value is not finite. */
  private _behind(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const [least, most] = this._range;
    ctx.save();
    ctx.globalCompositeOperation = 'destination-over';
    this._extents.forEach((extent, at) => {
      const { from, to } = this._columns[at];
      const x = Math.round(plot.valToPos(from - 0.5, 'x', true));
      const end = Math.round(plot.valToPos(to - 0.5, 'x', true));
      if (extent.most > extent.least) {
        const top = plot.valToPos(Math.min(extent.most, most), 'y', true);
        const low = plot.valToPos(Math.max(extent.least, least), 'y', true);
        ctx.fillStyle = this._theme.grid;
        ctx.fillRect(x, top, Math.max(1, end - x), low - top);
      }
      if (extent.broken >= 0) {
        const size = MARK * uPlot.pxRatio;
        ctx.fillStyle = this._theme.text;
        ctx.fillRect((x + end) / 2 - size / 2, bbox.top, size, size);
      }
    });
    ctx.restore();
  }

  private _range: [number, number] = [0, 1];
  private _extents: readonly IExtent[] = [];
  private _columns: readonly IColumn[] = [];
}
