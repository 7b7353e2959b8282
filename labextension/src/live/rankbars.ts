/**
 * One iteration, a row per rank: its phases in the order of execution,
 * and hatched below the bar, the overlapped communication.
 */

import { element } from './dom';
import { milliseconds, tick } from './format';
import { labelledRows, roundUp } from './layout';
import { overlapPattern } from './overlappattern';
import { EXPOSED, IN_TIME, OVERLAPPED } from './phases';
import { IRankPlace } from './protocol';
import { IReading } from './reading';
import { ITranslate } from '../common/translate';
import { ITheme } from './theme';

/** Space in CSS pixels: labels at the left, totals at the right, axis below. */
const MARGIN = { left: 52, right: 54, top: 4, bottom: 20 };

/** Maximum thickness of a row. */
const THICKEST = 44;

export class RankBars {
  constructor(
    theme: ITheme,
    private _trans: ITranslate
  ) {
    this._theme = theme;
    this.node.setAttribute('role', 'img');
  }

  readonly node = element('canvas', 'jp-gw-Live-bars');

  setTheme(theme: ITheme): void {
    this._theme = theme;
  }

  setSize(width: number, height: number): void {
    const ratio = window.devicePixelRatio || 1;
    [this._width, this._height] = [width, height];
    this.node.width = Math.round(width * ratio);
    this.node.height = Math.round(height * ratio);
    this.node.style.width = `${width}px`;
    this.node.style.height = `${height}px`;
  }

  /** Draw the reading of each rank; `chosen` is the selected row. */
  draw(
    ranks: readonly IRankPlace[],
    reading: IReading,
    chosen: number | null
  ): void {
    const ctx = this.node.getContext('2d');
    if (!ctx) {
      return;
    }
    const ratio = window.devicePixelRatio || 1;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this._width, this._height);
    const totals = ranks.map((_, row) => reading('iteration_us', row));
    const longest = Math.max(...totals.filter(us => us > 0), 1);
    this._end = roundUp(longest * 1.01);
    const each = Math.min(
      THICKEST,
      (this._height - MARGIN.top - MARGIN.bottom) / Math.max(1, totals.length)
    );
    this._axis(ctx, MARGIN.top + each * totals.length);
    this._labels(ctx, ranks, totals, each, chosen);
    totals.forEach((_, row) => this._bar(ctx, reading, row, each));
  }

  private _x(us: number): number {
    const width = this._width - MARGIN.left - MARGIN.right;
    return MARGIN.left + (width * us) / this._end;
  }

  private _axis(ctx: CanvasRenderingContext2D, bottom: number): void {
    ctx.font = this._theme.font;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'top';
    for (const share of [0, 0.5, 1]) {
      const x = Math.round(this._x(this._end * share)) + 0.5;
      ctx.strokeStyle = this._theme.grid;
      line(ctx, x, MARGIN.top, x, bottom + 3);
      ctx.fillStyle = this._theme.muted;
      const ms = tick((this._end * share) / 1e3);
      ctx.fillText(share === 1 ? `${ms} ms` : ms, x, bottom + 6);
    }
  }

  private _labels(
    ctx: CanvasRenderingContext2D,
    ranks: readonly IRankPlace[],
    totals: number[],
    each: number,
    chosen: number | null
  ): void {
    ctx.font = this._theme.font;
    ctx.textBaseline = 'middle';
    for (const row of labelledRows(totals.length, each * totals.length, 12)) {
      const y = MARGIN.top + each * (row + 0.5);
      ctx.fillStyle =
        row === chosen || chosen === null
          ? this._theme.text
          : this._theme.muted;
      ctx.textAlign = 'right';
      const name = this._trans.__('rank %1', ranks[row].rank);
      ctx.fillText(name, MARGIN.left - 6, y);
      ctx.fillText(milliseconds(totals[row]), this._width - 4, y);
    }
  }

  private _bar(
    ctx: CanvasRenderingContext2D,
    reading: IReading,
    row: number,
    each: number
  ): void {
    const gap = each >= 6 ? Math.min(4, each * 0.15) : 0;
    const strip = each >= 9 ? Math.max(2, (each - 2 * gap) * 0.22) : 0;
    const y = MARGIN.top + each * row + gap;
    const height = each - 2 * gap - strip;
    this._roomy = height >= 13;
    let start = 0;
    let computed = 0;
    for (const phase of IN_TIME) {
      const us = reading(phase.column, row) || 0;
      box(
        ctx,
        this._x(start),
        y,
        this._x(start + us),
        height,
        phase.color,
        phase.edge
      );
      if (phase === EXPOSED) {
        this._name(
          ctx,
          us,
          this._x(start),
          this._x(start + us),
          y + height / 2
        );
      }
      start += us;
      computed = phase.column === 'backward_us' ? start : computed;
    }
    const hidden = reading(OVERLAPPED.column, row) || 0;
    const from = this._x(Math.max(0, computed - hidden));
    const fill = overlapPattern(ctx, OVERLAPPED.color, this._theme);
    box(ctx, from, y + height, this._x(computed), strip, fill, OVERLAPPED.edge);
  }

  /** Write the exposed time inside its segment if it fits. */
  private _name(
    ctx: CanvasRenderingContext2D,
    us: number,
    left: number,
    right: number,
    y: number
  ): void {
    const text = milliseconds(us);
    ctx.font = `bold ${this._theme.font}`;
    if (ctx.measureText(text).width + 2 <= right - left && this._roomy) {
      ctx.fillStyle = '#000000'; // 5.6 to 1 on the colour of exposed communication
      ctx.textAlign = 'center';
      ctx.textBaseline = 'middle';
      ctx.fillText(text, (left + right) / 2, y + 0.5);
    }
  }

  private _theme: ITheme;
  private _roomy = false;
  private _width = 0;
  private _height = 0;
  private _end = 1;
}

function line(
  ctx: CanvasRenderingContext2D,
  x1: number,
  y1: number,
  x2: number,
  y2: number
): void {
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}

/** A filled box with an edge of one pixel if it fits. */
function box(
  ctx: CanvasRenderingContext2D,
  left: number,
  top: number,
  right: number,
  height: number,
  fill: string | CanvasPattern,
  edge: string
): void {
  const width = right - left;
  if (width < 0.25 || height <= 0) {
    return;
  }
  ctx.fillStyle = fill;
  ctx.fillRect(left, top, width, height);
  if (width > 2 && height > 3) {
    ctx.strokeStyle = edge;
    ctx.lineWidth = 1;
    ctx.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
  }
}
