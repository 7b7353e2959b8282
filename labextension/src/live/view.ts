/**
 * The live view: arranges the parts, and draws them at most once per animation
 * frame, and only while it can be seen.
 */

import { Charts } from './charts';
import { Controls } from './controls';
import { element, setText } from './dom';
import { TimingFeed } from './feed';
import { KeyLine } from './keyline';
import { readKey } from './keys';
import { ILayout, layout } from './layout';
import { numberOf } from './protocol';
import { RankBars } from './rankbars';
import { ViewRange } from './range';
import { describe, Readout, ReadoutTitle } from './readout';
import { ENGLISH, ITranslate } from './text';
import { readTheme, watchTheme } from './theme';
import { watchSize, watchVisibility } from './watch';

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
    this._bars = new RankBars(theme);
    this._readout = new Readout(this._trans);
    this._charts = new Charts(this._trans, theme, {
      hover: iteration => this._onHover(iteration),
      select: (from, to) => this._zoom(from, to),
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
    this._charts.node.addEventListener('keydown', event => this._onKey(event));
    const one = element(
      'div',
      'gw-live-one',
      this._title.node,
      this._bars.node,
      this._readout.node
    );
    this._main.append(this._charts.node, one);
    this._body.append(this._keys.node, this._main, this._controls.node);
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
    this._bars.setTheme(theme);
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
    const following = this._range.following;
    if (!this._paused) {
      this._keys.update(status.summary);
    }
    if (this._row !== null && this._row >= store.ranks.length) {
      this._row = null;
    }
    const range = this._range.current(store.first, store.last);
    this._charts.draw(
      store,
      range,
      this._row,
      numberOf(status.summary.nominal_gbps)
    );
    this._controls.setRanks(store.ranks);
    this._controls.update(status, this._paused, following, this._note);
    this._drawing = false;
    this._drawOne();
  }

  private _drawOne(): void {
    const { store } = this._feed;
    const range = this._range.current(store.first, store.last);
    const latest = Math.min(range.to - 1, store.lastWhole);
    const iteration = this._hovered ?? latest;
    this._title.update(this._trans, iteration, iteration >= store.lastWhole);
    this._bars.draw(store, iteration, this._row);
    this._bars.node.setAttribute(
      'aria-label',
      describe(this._trans, store, iteration, this._row)
    );
    this._readout.update(store, iteration, this._row);
  }

  private _onHover(iteration: number | null): void {
    const { store } = this._feed;
    const held =
      iteration !== null && iteration >= store.first && iteration <= store.last;
    const hovered = held ? iteration : null;
    if (hovered !== this._hovered) {
      this._hovered = hovered;
      if (!this._drawing) {
        this.requestDraw();
      }
    }
  }

  private _zoom(from: number, to: number): void {
    this._change(() => this._range.fix({ from, to }));
  }

  private _follow(): void {
    this._change(() => {
      this._paused = false;
      this._range.follow();
    });
  }

  private _togglePause(): void {
    if (this._paused) {
      this._follow();
      return;
    }
    // What is not whole yet would still change.
    const { first, lastWhole } = this._feed.store;
    this._change(() => {
      this._range.fix(this._range.current(first, lastWhole));
      this._paused = true;
    });
  }

  private _change(change: () => void): void {
    change();
    this.requestDraw();
  }

  private _onKey(event: KeyboardEvent): void {
    const { first, last } = this._feed.store;
    const range = this._range.current(first, last);
    const at = this._hovered ?? last;
    const action = readKey(event.key, at, range, { first, last });
    if (action === null) {
      return;
    }
    if (action.zoom) {
      this._zoom(action.zoom.from, action.zoom.to);
    } else if (action.cursor === null) {
      this._follow();
    }
    // After the drawing: an iteration may be elsewhere then.
    const { cursor } = action;
    requestAnimationFrame(() => this._charts.setCursor(cursor));
    event.preventDefault();
    event.stopPropagation();
  }

  private _relayout(): void {
    this._ranks = this._feed.store.ranks.length;
    const style = getComputedStyle(this.node);
    const padding =
      (parseFloat(style.paddingLeft) || 0) +
      (parseFloat(style.paddingRight) || 0);
    this._width = Math.max(0, this.node.clientWidth - padding);
    if (this._width === 0) {
      return;
    }
    this._onTheme();
    const sizes: ILayout = layout(this._width, this._ranks);
    this._main.classList.toggle('gw-live-narrow', sizes.narrow);
    this._main.style.setProperty('--gw-live-right', `${sizes.right}px`);
    this._charts.setLayout(sizes);
    this._bars.setSize(sizes.right, sizes.bars);
    this.requestDraw();
  }

  private _feed: TimingFeed;
  private _trans: ITranslate;
  private _range = new ViewRange();
  private _keys!: KeyLine;
  private _charts!: Charts;
  private _bars!: RankBars;
  private _readout!: Readout;
  private _controls!: Controls;
  private _title = new ReadoutTitle();
  private _waiting = element('div', 'gw-live-waiting');
  private _body = element('div', 'gw-live-body');
  private _main = element('div', 'gw-live-main');
  private _row: number | null = null;
  private _hovered: number | null = null;
  private _note = '';
  private _paused = false;
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
