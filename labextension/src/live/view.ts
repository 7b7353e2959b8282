/**
 * The live view: arranges its components, and connects user actions to the drawing.
 */

import { Charts } from './charts';
import { Controls } from './controls';
import { Cursor } from './cursor';
import { element, setText } from './dom';
import { EarlierChoice } from './earlier';
import { TimingFeed } from './feed';
import { Figures } from './figures';
import { Focus } from './focus';
import { FrameScheduler } from './frames';
import { ILayout, layout } from './layout';
import { ProfileLine } from './profileline';
import { numberOf } from './protocol';
import { ViewRange } from './range';
import { SingleIterationChart } from './singleiteration';
import { IRunFile } from '../common/runfile';
import { ENGLISH, ITranslate } from '../common/translate';
import { readTheme, watchTheme } from './theme';
import { VerdictLine } from './verdict';
import { contentWidth, watchSize, watchVisibility } from './watch';

export class LiveView {
  constructor(options: LiveView.IOptions) {
    this._feed = options.feed;
    this._trans = options.translate ?? ENGLISH;
    this.node = element('div', 'jp-gw-Live');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute(
      'aria-label',
      this._trans.__('Timings of the training')
    );
    options.host.append(this.node);
    this._focus = new Focus(this._feed, this._trans);
    this._single = new SingleIterationChart(this._trans, readTheme(this.node));
    this._charts = this._makeCharts();
    this._figures = this._makeFigures();
    this._verdict = new VerdictLine(this._feed, this._trans);
    this._profile = new ProfileLine(this._feed, this._trans, options.fileUrl);
    this._controls = this._makeControls();
    this._cursor = this._makeCursor();
    this._listenToKeys();
    this._arrange();
    this._stop = [
      this._feed.onChange(() => this._onFeed()),
      watchTheme(() => this._onTheme()),
      watchSize(this.node, () => this._relayout()),
      watchVisibility(this.node, visible => {
        this._frames.isVisible = visible;
      })
    ];
    this._onFeed();
  }

  readonly node: HTMLDivElement;

  /** A line that replaces the run's message, such as "the kernel has ended". */
  setNote(note: string): void {
    if (note !== this._note) {
      this._note = note;
      this._frames.request();
    }
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    this._frames.dispose();
    this._stop.forEach(stop => stop());
    this._charts.dispose();
    this._verdict.dispose();
    this._profile.dispose();
    this.node.remove();
  }

  private _makeCharts(): Charts {
    return new Charts(this._trans, readTheme(this.node), {
      hover: iteration => this._cursor.hover(iteration),
      select: (from, to) => this._select(from, to),
      reset: () => this._follow()
    });
  }

  private _makeFigures(): Figures {
    return new Figures(this._focus, this._trans, {
      clear: () => this._follow(),
      select: (from, to) => this._select(from, to)
    });
  }

  private _makeControls(): Controls {
    const redraw = (): void => this._frames.request();
    const earlier = new EarlierChoice(this._feed.earlier, this._trans, redraw);
    return new Controls(this._trans, earlier, {
      pause: () => this._togglePause(),
      follow: () => this._follow(),
      chooseRank: row => this._change(() => (this._row = row)),
      chooseSpan: span => {
        this._range.span = span;
        this._follow();
      }
    });
  }

  private _makeCursor(): Cursor {
    return new Cursor(this._charts.node, this._feed.store, () => {
      if (!this._drawing) {
        this._frames.request();
      }
    });
  }

  private _listenToKeys(): void {
    this._charts.node.addEventListener('keydown', event => this._onKey(event));
    this.node.addEventListener('keydown', ({ key }) => {
      if (key === 'Escape' && this._range.mode === 'select') {
        this._follow();
      }
    });
  }

  /** Put the components below each other. */
  private _arrange(): void {
    this._main.append(this._charts.node, this._single.node);
    this._body.append(
      this._figures.keyFigures.node,
      this._figures.statusLine.node,
      this._verdict.node,
      this._main,
      this._figures.table.node,
      this._figures.stages.node,
      this._controls.node,
      this._profile.node
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
      // Refined data, such as clock offsets, is drawn later.
      this._controls.update(status, 'pause', this._note);
      this._controls.earlier.update();
      if (this._feed.earlier.run === this._earlierRun) {
        return;
      }
    }
    this._frames.request(status.state !== 'running');
  }

  /** Also called when the view is attached, since it inherits no colours before. */
  private _onTheme(): void {
    const theme = readTheme(this.node);
    this._charts.setTheme(theme);
    this._single.setTheme(theme);
    this._frames.request();
  }

  private _draw(all: boolean): void {
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
    const { summary, logged = [] } = status;
    const lines = {
      nominal: numberOf(summary.nominal_gbps),
      calibrated: numberOf(summary.calibrated_gbps),
      error: numberOf(summary.calibrated_error ?? NaN)
    };
    const { earlier } = this._feed;
    this._charts.draw(store, range, this._row, lines, earlier);
    this._earlierRun = earlier.run;
    this._figures.update(range, this._range.mode, store.last);
    if (all) {
      this._charts.drawProgress(this._row, logged);
      this._controls.earlier.update();
      this._controls.setRanks(store.ranks);
      this._controls.update(status, this._range.mode, this._note);
    }
    this._drawing = false;
    const { iteration } = this._cursor;
    if (all || iteration !== null) {
      const latest = Math.min(range.to - 1, store.lastWhole);
      this._single.draw(store, this._focus, iteration, latest, this._row);
    }
  }

  /** Show and describe a selection, `to` exclusive. */
  private _select(from: number, to: number): void {
    this._change(() => {
      this._cursor.rest();
      this._range.fix({ from, to }, 'select');
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
    // Incomplete iterations would still change.
    const { first, lastWhole } = this._feed.store;
    this._change(() =>
      this._range.fix(this._range.current(first, lastWhole), 'pause')
    );
  }

  private _change(change: () => void): void {
    change();
    this._feed.store.still = this._range.mode !== 'follow';
    this._frames.request();
  }

  private _onKey(event: KeyboardEvent): void {
    const { first, last } = this._feed.store;
    const range = this._range.current(first, last);
    const action = this._cursor.press(event.key, range);
    if (action === null) {
      return;
    }
    if (action.zoom) {
      this._select(action.zoom.from, action.zoom.to);
    } else {
      if (action.cursor === null) {
        this._follow();
      }
      // After the drawing, since the iteration under the cursor may have changed.
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
    this._main.classList.toggle('jp-gw-Live-narrow', sizes.narrow);
    this._main.style.setProperty('--jp-gw-live-right', `${sizes.right}px`);
    this._charts.setLayout(sizes);
    this._single.setSize(sizes.right, sizes.bars);
    this._frames.request();
  }

  private _feed: TimingFeed;
  private _trans: ITranslate;
  private _range = new ViewRange();
  private _charts: Charts;
  private _single: SingleIterationChart;
  private _cursor: Cursor;
  private _focus: Focus;
  private _figures: Figures;
  private _verdict: VerdictLine;
  private _profile: ProfileLine;
  private _frames = new FrameScheduler(all => this._draw(all));
  private _controls: Controls;
  private _waiting = element('div', 'jp-gw-Live-waiting');
  private _body = element('div', 'jp-gw-Live-body');
  private _main = element('div', 'jp-gw-Live-main');
  private _row: number | null = null;
  private _earlierRun: TimingFeed['earlier']['run'] = null;
  private _note = '';
  private _drawing = false;
  private _width = 0;
  private _ranks = -1;
  private _disposed = false;
  private _stop: (() => void)[] = [];
}

export namespace LiveView {
  export interface IOptions {
    /** The element that contains the view. */
    host: HTMLElement;
    feed: TimingFeed;
    translate?: ITranslate;
    /** The URL of a file of a run; null if it has none. Without it, there are no links. */
    fileUrl?: (file: IRunFile) => string | null;
  }
}
