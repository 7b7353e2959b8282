/**
 * Waiting by rank and iteration: a row per rank, darker for longer waits. If several
 * iterations or ranks share a pixel, it shows the longest wait. It uses the text
 * colour, so that exposed communication remains the most prominent.
 */

import uPlot from 'uplot';

import { IColumn } from './decimate';
import { axisEnd, labelledRows } from './layout';
import { IScene } from './plot';
import { ITranslate } from '../common/translate';
import { IPlace, TimeChart, ValuesOfSpans } from './timechart';

/** Opacity of a rank that did not wait; only unknown values are blank. */
const FAINT = 0.07;

/** Of how many waits the scale is computed. */
const SAMPLED = 2048;

export class HeatStrip extends TimeChart {
  constructor(
    place: IPlace,
    private _trans: ITranslate
  ) {
    super(place.theme);
    this.plot = this._makePlot(place, {
      bottomAxis: false,
      y: {
        grid: { show: false },
        splits: plot =>
          labelledRows(
            this._labels.length,
            plot.bbox.height / uPlot.pxRatio,
            12
          ),
        values: (_, rows) => rows.map(row => this._labels[row])
      },
      yScale: {
        dir: -1,
        range: () => [-0.5, Math.max(1, this._labels.length) - 0.5]
      },
      series: [{ paths: () => null, points: { show: false } }],
      draw: plot => this._draw(plot)
    });
  }

  readonly plot: uPlot;

  /** The wait in microseconds with the darkest colour. */
  get darkest(): number {
    return this._darkest;
  }

  protected _values(scene: IScene): ValuesOfSpans[] {
    const { columns, ranks } = scene;
    this._columns = columns;
    this._labels = ranks.map(({ rank }) => this._trans.__('rank %1', rank));
    this._darkest = axisEnd(sampled(columns));
    return [columns.map(() => 0)];
  }

  private _draw(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const image = this._image(Math.floor(bbox.height));
    if (!image) {
      return;
    }
    // The first and the last column may be cut, but the image is not.
    const { width, height } = image;
    const step = Math.max(...this._columns.map(one => one.to - one.from));
    const start = Math.floor(this._columns[0].from / step) * step;
    const left = plot.valToPos(start - 0.5, 'x', true);
    const right = plot.valToPos(start + width * step - 0.5, 'x', true);
    const each = bbox.height / height;
    const gap = each >= 6 * uPlot.pxRatio ? uPlot.pxRatio : 0;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.imageSmoothingEnabled = false;
    for (let row = 0; row < height; row++) {
      const y = bbox.top + row * each;
      ctx.drawImage(image, 0, row, width, 1, left, y, right - left, each - gap);
    }
    ctx.restore();
  }

  /** One pixel per column and rank; ranks share rows if there are more than `most`. */
  private _image(most: number): HTMLCanvasElement | null {
    const ranks = this._labels.length;
    const [width, height] = [this._columns.length, Math.min(ranks, most)];
    const pen = this._pen;
    if (!pen || width === 0 || height <= 0) {
      return null;
    }
    const { canvas } = pen;
    [canvas.width, canvas.height] = [width, height];
    const image = pen.createImageData(width, height);
    const [red, green, blue] = this._ink(pen);
    this._columns.forEach(({ waits }, x) => {
      for (let rank = 0; rank < ranks; rank++) {
        const at = (Math.floor((rank * height) / ranks) * width + x) * 4;
        const alpha = 255 * shade(waits[rank], this._darkest);
        if (alpha > image.data[at + 3]) {
          image.data[at] = red;
          image.data[at + 1] = green;
          image.data[at + 2] = blue;
          image.data[at + 3] = alpha;
        }
      }
    });
    pen.putImageData(image, 0, 0);
    return canvas;
  }

  /** The colour of waiting. It is read once per theme, because reading a canvas is slow. */
  private _ink(pen: CanvasRenderingContext2D): Channels {
    if (this._inkOf !== this._theme.text) {
      this._inkOf = this._theme.text;
      this._channels = channels(pen, this._inkOf);
    }
    return this._channels;
  }

  private _pen = document.createElement('canvas').getContext('2d');
  private _inkOf = '';
  private _channels: Channels = [0, 0, 0];
  private _darkest = 1;
  private _columns: readonly IColumn[] = [];
  private _labels: string[] = [];
}

/** The longest wait, and about `SAMPLED` of all, since sorting all would take most of a frame. */
function sampled(columns: readonly IColumn[]): number[] {
  const total = columns.reduce((sum, { waits }) => sum + waits.length, 0);
  // Odd, so that columns of 64 ranks contribute different ranks.
  const step = 2 * Math.floor(total / SAMPLED / 2) + 1;
  const some: number[] = [];
  let [most, at] = [0, 0];
  for (const { waits } of columns) {
    for (let rank = 0; rank < waits.length; rank++, at++) {
      most = waits[rank] > most ? waits[rank] : most;
      if (at % step === 0) {
        some.push(waits[rank]);
      }
    }
  }
  return [...some, most];
}

/** Red, green and blue, 0 to 255. */
type Channels = readonly [number, number, number];

/** Opacity of a wait; zero if it is unknown. */
function shade(wait: number, darkest: number): number {
  if (wait !== wait) {
    return 0;
  }
  const share = Math.min(1, Math.max(0, wait / darkest));
  return FAINT + (0.92 - FAINT) * share;
}

/** A CSS colour in any notation as red, green and blue. */
function channels(pen: CanvasRenderingContext2D, color: string): Channels {
  pen.fillStyle = color;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  pen.clearRect(0, 0, 1, 1);
  return [red, green, blue];
}
