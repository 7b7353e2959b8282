/**
 * The three charts over time, each with its title, drawn together.
 */

import { BandwidthChart } from './bandwidthchart';
import { Columns, spans } from './decimate';
import { element, keepKeys, setText, swatch } from './dom';
import { EarlierKey, EarlierRuns } from './earlier';
import { digits, percent, tick } from './format';
import { HeatStrip } from './heatstrip';
import { AXIS_WIDTH, ILayout } from './layout';
import { PhaseChart } from './phasechart';
import { COPY, EXPOSED, IN_STACK, OVERLAPPED, phaseName } from './phases';
import { IGestures, ILines, IScene } from './plot';
import { ProgressCharts } from './progresscharts';
import { IRange } from './range';
import { isUnknown } from '../schema/known';
import { TimingStore } from './store';
import { ITranslate } from '../common/translate';
import { ITheme } from './theme';
import { TimeChart } from './timechart';

/** Minimum width of a chart's column in CSS pixels. */
const COLUMN = 2;

export class Charts {
  constructor(trans: ITranslate, theme: ITheme, gestures: IGestures) {
    this._trans = trans;
    const shared = { sync: Private.newSync(), theme, gestures };
    const host = (): HTMLElement => element('div', 'jp-gw-Live-plot');
    const [phases, waiting, bandwidth] = [host(), host(), host()];
    this._earlierKey = new EarlierKey(trans);
    this._phases = new PhaseChart({ host: phases, ...shared });
    this._waiting = new HeatStrip({ host: waiting, ...shared }, trans);
    this._bandwidth = new BandwidthChart(
      { host: bandwidth, ...shared },
      trans.__('iteration')
    );
    this._progress = new ProgressCharts(shared, trans);
    this.node.append(
      this._section(trans.__('Phases, ms'), this._legend(), phases),
      this._earlierKey.node,
      this._section(
        trans.__('Waiting for the others, ms'),
        this._scale,
        waiting
      ),
      this._section(trans.__('Bandwidth, Gbit/s'), this._lines(), bandwidth),
      this._progress.node
    );
    this.node.tabIndex = 0;
    keepKeys(this.node);
    this.node.setAttribute('role', 'group');
    this.node.setAttribute(
      'aria-label',
      trans.__(
        'Timings over iterations. Arrow keys read one iteration; plus and minus select fewer or more around it; brackets start and end the selection; escape follows the newest.'
      )
    );
  }

  readonly node = element('div', 'jp-gw-Live-charts');

  setLayout(sizes: ILayout): void {
    this.node.classList.toggle('jp-gw-Live-brief', !sizes.legend);
    this._width = sizes.left - AXIS_WIDTH - 4;
    this._phases.setSize(sizes.left, sizes.phases);
    this._waiting.setSize(sizes.left, sizes.waiting);
    this._bandwidth.setSize(sizes.left, sizes.bandwidth);
    this._progress.setWidth(sizes.left);
  }

  setTheme(theme: ITheme): void {
    this._all.forEach(chart => chart.setTheme(theme));
  }

  draw(
    store: TimingStore,
    range: IRange,
    row: number | null,
    lines: ILines,
    runs: EarlierRuns
  ): void {
    const [from, to] = [
      Math.max(range.from, store.first),
      Math.min(range.to, store.last + 1)
    ];
    const columns = Math.max(1, Math.floor(this._width / COLUMN));
    const stored = spans(
      from,
      to,
      (columns * (to - from)) / (range.to - range.from)
    );
    const drawn = this._columns.of(store, stored, row);
    const earlier = runs.run && !isUnknown(runs.run) ? runs.run : null;
    const { ranks } = store;
    const scene = { ...range, ...lines, columns: drawn, ranks, earlier };
    this._earlierKey.update(runs);
    this._main.forEach(chart => chart.draw(scene));
    this._scene = scene;
    setText(this._darkest, tick(this._waiting.darkest / 1e3));
    this._showLines(lines);
    const copy = IN_STACK.indexOf(COPY);
    this._copies ||= drawn.some(one => one.means[copy] > 0);
    this._copyKey.hidden = !this._copies;
  }

  /** Draw what the cell logs, of what `draw` was given last. */
  drawProgress(row: number | null, logged: readonly string[]): void {
    if (this._scene) {
      this._progress.draw(this._scene, row, logged);
    }
  }

  private _showLines(lines: ILines): void {
    for (const name of ['nominal', 'calibrated'] as const) {
      const [label, key] = this._lineKeys[name];
      const isDrawn = lines[name] > 0;
      const isOffScale = this._bandwidth.offScale[name];
      const text = lineText(name, lines, isOffScale, this._trans);
      setText(label, isDrawn ? text : '');
      key.hidden = !isDrawn;
    }
  }

  /** Move the cursor of all charts to an iteration; null removes it. */
  setCursor(iteration: number | null): void {
    const plot = this._phases.plot;
    const left = iteration === null ? -10 : plot.valToPos(iteration, 'x');
    plot.setCursor({ left, top: iteration === null ? -10 : 1 });
  }

  dispose(): void {
    this._all.forEach(chart => chart.dispose());
  }

  private get _main(): TimeChart[] {
    return [this._phases, this._waiting, this._bandwidth];
  }

  private get _all(): TimeChart[] {
    return [...this._main, ...this._progress.charts];
  }

  private _section(
    title: string,
    key: HTMLElement,
    plot: HTMLElement
  ): HTMLElement {
    const head = element(
      'div',
      'jp-gw-Live-head',
      element('h4', 'jp-gw-Live-title', title),
      key
    );
    return element('section', 'jp-gw-Live-section', head, plot);
  }

  private _legend(): HTMLElement {
    const key = element('span', 'jp-gw-Live-legend');
    for (const phase of [OVERLAPPED, ...IN_STACK]) {
      const hatched = phase === OVERLAPPED;
      const name = phaseName(phase, this._trans);
      const item = element('span', 'jp-gw-Live-legendItem');
      item.append(swatch(phase.color, phase.edge, hatched), name);
      item.classList.toggle('jp-gw-Live-loud', phase === EXPOSED);
      item.classList.toggle('jp-gw-Live-minor', phase !== EXPOSED && !hatched);
      if (phase === COPY) {
        this._copyKey = item;
      }
      key.prepend(item);
    }
    return key;
  }

  private _lines(): HTMLElement {
    const item = (kind: string, label: HTMLElement | string): HTMLElement => {
      const stroke = element(
        'span',
        `jp-gw-Live-stroke jp-gw-Live-stroke-${kind}`
      );
      return element('span', 'jp-gw-Live-legendItem', stroke, label);
    };
    for (const name of ['nominal', 'calibrated'] as const) {
      const label = element('span', '');
      this._lineKeys[name] = [label, item(name, label)];
    }
    const trans = this._trans;
    return element(
      'span',
      'jp-gw-Live-legend',
      item('busbw', trans.__('busbw')),
      item('algbw', trans.__('algbw')),
      this._lineKeys.nominal[1],
      this._lineKeys.calibrated[1]
    );
  }

  private _trans: ITranslate;
  private _width = 300;
  private _scene: IScene | null = null;
  private _phases: PhaseChart;
  private _waiting: HeatStrip;
  private _bandwidth: BandwidthChart;
  private _progress: ProgressCharts;
  private _earlierKey: EarlierKey;
  private _lineKeys = {} as Record<
    keyof ILines,
    [label: HTMLElement, key: HTMLElement]
  >;
  private _copyKey!: HTMLElement;
  private _copies = false;
  private _columns = new Columns();
  private _darkest = element('span', '');
  private _scale = element(
    'span',
    'jp-gw-Live-legend',
    element(
      'span',
      'jp-gw-Live-legendItem',
      '0',
      element('span', 'jp-gw-Live-ramp'),
      this._darkest
    )
  );
}

/** The label of a line in the legend, with its bandwidth. */
function lineText(
  name: 'nominal' | 'calibrated',
  lines: ILines,
  isOffScale: boolean,
  trans: ITranslate
): string {
  const value = digits(lines[name]);
  if (name === 'nominal') {
    return isOffScale
      ? trans.__('nominal %1 (off the scale)', value)
      : trans.__('nominal %1', value);
  }
  // NaN if the error is unknown.
  const error = lines.error === lines.error ? ` ± ${percent(lines.error)}` : '';
  return isOffScale
    ? trans.__('calibrated %1 (off the scale)', value + error)
    : trans.__('calibrated %1', value + error);
}

namespace Private {
  let made = 0;

  /** A name for the shared cursor of the charts of one view. */
  export function newSync(): string {
    made += 1;
    return `jp-gw-Live-${made}`;
  }
}
