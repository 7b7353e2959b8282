/**
 * The live view: arranges the parts, and draws them at most once per animation
 * frame, and only while it can be seen.
 */

import { Charts } from './charts';
import { CollectiveTable } from './collectivetable';
import { Controls } from './controls';
import { Cursor } from './cursor';
import { element, setText } from './dom';
import { TimingFeed } from './feed';
import { Focus } from './focus';
import { KeyLine } from './keyline';
import { ILayout, layout } from './layout';
import { Notice } from './notice';
import { OneColumn } from './one';
import { numberOf } from './protocol';
import { IRange, ViewRange } from './range';
import { ENGLISH, ITranslate } from './text';
import { readTheme, watchTheme } from './theme';
import { contentWidth, watchSize, watchVisibility } from './watch';

export class LiveView {
  constructor(options: LiveView.IOptions) {
    this._feed = options.feed;
    this._trans = options.translate ?? ENGLISH;
    this.node = element('div', 'gw-live');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute(
      'aria-label',
      this._trans.__('Timings of the training')
    );
    options.host.append(this.node);
    this._build();
    this._stop = [
      this._feed.onChange(() => this._onFeed()),
      watchTheme(() => this._onTheme()),
      watchSize(this.node, () => this._relayout()),
      watchVisibility(this.node, visible => this._onVisible(visible))
    ];
    this._onFeed();
  }

  readonly node: HTMLDivElement;

  /** A line that replaces the run's own, such as "the kernel is gone". */
  setNote(note: string): void {
    this._note = note;
    this.requestDraw();
  }

  /** Draw at the next animation frame, or as soon as the view can be seen. */
  requestDraw(): void {
    if (this._frame || this._disposed) {
      return;
    }
    if (!this._visible) {
      this._stale = true;
      return;
    }
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._draw();
    });
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    cancelAnimationFrame(this._frame);
    this._stop.forEach(stop => stop());
    this._charts.dispose();
    this.node.remove();
  }

  private _build(): void {
    const theme = readTheme(this.node);
    this._keys = new KeyLine(this._trans);
    this._focus = new Focus(this._feed, this._trans);
    this._table = new CollectiveTable(this._trans);
    this._notice = new Notice(this._trans, {
      leave: () => this._follow(),
      mark: (from, to) => this._mark(from, to)
    });
    this._one = new OneColumn(this._trans, theme);
    this._charts = new Charts(this._trans, theme, {
      hover: iteration => this._cursor.hover(iteration),
      select: (from, to) => this._mark(from, to),
      reset: () => this._follow()
    });
    this._controls = new Controls(this._trans, {
      pause: () => this._togglePause(),
      follow: () => this._follow(),
      chooseRank: row => this._change(() => (this._row = row)),
      chooseSpan: span => {
        this._range.span = span;
        this._follow();
      }
    });
    const { node } = this._charts;
    this._cursor = new Cursor(node, this._feed.store, () => {
      if (!this._drawing) {
        this.requestDraw();
      }
    });
    node.addEventListener('keydown', event => this._onKey(event));
    this.node.addEventListener('keydown', ({ key }) => {
      if (key === 'Escape' && this._range.mode === 'mark') {
        this._follow();
      }
    });
    this._main.append(this._charts.node, this._one.node);
    this._body.append(
      this._keys.node,
      this._notice.node,
      this._main,
      this._table.node,
      this._controls.node
    );
    this._waiting.setAttribute('role', 'status');
    this.node.append(this._waiting, this._body);
  }

  private _onFeed(): void {
    const { store, status } = this._feed;
    const first = store.length === 0;
    this._waiting.hidden = !first;
    this._body.hidden = first;
    if (first) {
      const wait = this._trans.__('Waiting for the first iteration.');
      setText(this._waiting, this._note || status.message || wait);
    } else if (this._ranks !== store.ranks.length) {
      this._relayout();
    } else if (this._range.mode === 'pause') {
      // what is known better by now, such as the ranks' clocks, is drawn later
      this._controls.update(status, 'pause', this._note);
      return;
    }
    this.requestDraw();
  }

  private _onVisible(visible: boolean): void {
    this._visible = visible;
    if (visible && this._stale) {
      this._stale = false;
      this.requestDraw();
    }
  }

  /** Also when the view gets its place: before that it inherits no colours. */
  private _onTheme(): void {
    const theme = readTheme(this.node);
    this._charts.setTheme(theme);
    this._one.setTheme(theme);
    this.requestDraw();
  }

  private _draw(): void {
    const { store, status } = this._feed;
    if (store.length === 0 || this._width === 0) {
      if (this._note) {
        setText(this._waiting, this._note);
      }
      return;
    }
    this._drawing = true;
    if (this._row !== null && this._row >= store.ranks.length) {
      this._row = null;
    }
    const range = this._range.current(store.first, store.last);
    this._feed.fill(this._range.span ?? store.capacity);
    this._charts.draw(store, range, this._row, {
      nominal: numberOf(status.summary.nominal_gbps),
      calibrated: numberOf(status.summary.calibrated_gbps),
      error: numberOf(status.summary.calibrated_error ?? NaN)
    });
    this._drawFigures(range);
    this._controls.setRanks(store.ranks);
    this._controls.update(status, this._range.mode, this._note);
    this._drawing = false;
    const latest = Math.min(range.to - 1, store.lastWhole);
    const { iteration } = this._cursor;
    this._one.draw(store, this._focus, iteration, latest, this._row);
  }

  /** The figures of the marked stretch, or of the newest iterations. */
  private _drawFigures(range: IRange): void {
    const { mode } = this._range;
    this._focus.set(mode === 'mark' ? range : null);
    if (mode === 'pause') {
      return;
    }
    const { marked, summary, stragglers, collectives, scope } = this._focus;
    this._keys.update(summary, marked?.first ?? null);
    this._notice.update(marked, stragglers[0] ?? null, this._feed.store.last);
    this._table.update(collectives, scope);
  }

  /** Show a stretch, `to` exclusive, and answer for it. */
  private _mark(from: number, to: number): void {
    this._change(() => {
      this._cursor.rest();
      this._range.fix({ from, to }, 'mark');
    });
  }

  private _follow(): void {
    this._change(() => this._range.follow());
  }

  private _togglePause(): void {
    if (this._range.mode !== 'follow') {
      this._follow();
      return;
    }
    // What is not whole yet would still change.
    const { first, lastWhole } = this._feed.store;
    this._change(() =>
      this._range.fix(this._range.current(first, lastWhole), 'pause')
    );
  }

  private _change(change: () => void): void {
    change();
    this._feed.store.still = this._range.mode !== 'follow';
    this.requestDraw();
  }

  private _onKey(event: KeyboardEvent): void {
    const { first, last } = this._feed.store;
    const range = this._range.current(first, last);
    const action = this._cursor.press(event.key, range);
    if (action === null) {
      return;
    }
    if (action.zoom) {
      this._mark(action.zoom.from, action.zoom.to);
    } else {
      if (action.cursor === null) {
        this._follow();
      }
      // After the drawing: an iteration may be elsewhere then.
      requestAnimationFrame(() => this._charts.setCursor(action.cursor));
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private _relayout(): void {
    this._ranks = this._feed.store.ranks.length;
    this._width = contentWidth(this.node);
    if (this._width === 0) {
      return;
    }
    this._onTheme();
    const sizes: ILayout = layout(this._width, this._ranks);
    this._main.classList.toggle('gw-live-narrow', sizes.narrow);
    this._main.style.setProperty('--gw-live-right', `${sizes.right}px`);
    this._charts.setLayout(sizes);
    this._one.setSize(sizes.right, sizes.bars);
    this.requestDraw();
  }

  private _feed: TimingFeed;
  private _trans: ITranslate;
  private _range = new ViewRange();
  private _keys!: KeyLine;
  private _charts!: Charts;
  private _one!: OneColumn;
  private _cursor!: Cursor;
  private _focus!: Focus;
  private _notice!: Notice;
  private _table!: CollectiveTable;
  private _controls!: Controls;
  private _waiting = element('div', 'gw-live-waiting');
  private _body = element('div', 'gw-live-body');
  private _main = element('div', 'gw-live-main');
  private _row: number | null = null;
  private _note = '';
  private _drawing = false;
  private _visible = true;
  private _stale = false;
  private _frame = 0;
  private _width = 0;
  private _ranks = -1;
  private _disposed = false;
  private _stop: (() => void)[] = [];
}

export namespace LiveView {
  export interface IOptions {
    /** Where the view is put. */
    host: HTMLElement;
    feed: TimingFeed;
    translate?: ITranslate;
  }
}
