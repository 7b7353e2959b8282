/**
 * The small charts of a training's progress, with their titles: samples per second, and
 * the first values that the cell logs.
 */

import { IColumn, IExtent, LOGGED, MEANS } from './decimate';
import { element, setText } from './dom';
import { count, digits } from './format';
import { AXIS_WIDTH } from './layout';
import { IScene } from './plot';
import { SmallChart } from './smallchart';
import { ITranslate } from '../common/translate';
import { IPlace } from './timechart';

const HEIGHT = 64;
const GAP = 8;

export class ProgressCharts {
  constructor(
    place: Omit<IPlace, 'host'>,
    private _trans: ITranslate
  ) {
    this._parts = [speed, ...LOGGED.map((_, at) => readLogged(at))].map(
      read => {
        const host = element('div', 'jp-gw-Live-plot');
        const title = element('h4', 'jp-gw-Live-title', '');
        const text = element('span', 'jp-gw-Live-legend', '');
        const head = element('div', 'jp-gw-Live-head', title, text);
        const node = element('section', 'jp-gw-Live-section', head, host);
        node.hidden = true;
        const chart = new SmallChart({ host, ...place }, read);
        return { node, title, text, chart };
      }
    );
    this.node.append(...this._parts.map(part => part.node));
  }

  readonly node = element('div', 'jp-gw-Live-progress');

  get charts(): readonly SmallChart[] {
    return this._parts.map(part => part.chart);
  }

  setWidth(width: number): void {
    this._width = width;
    this._shown = -1;
  }

  /** Draw them; `row` is the rank's row, or null for all. */
  draw(scene: IScene, row: number | null, logged: readonly string[]): void {
    const { _trans: trans } = this;
    const samples = MEANS.indexOf('samples_per_s');
    const known = scene.columns.some(one => one.means[samples] > 0);
    const titles = [
      known &&
        (row === null
          ? trans.__('Total throughput, samples/s')
          : trans.__('Throughput, samples/s')),
      ...LOGGED.map(
        (_, at) =>
          logged[at] !== undefined &&
          (row === null
            ? trans.__('%1, mean and range of ranks', logged[at])
            : logged[at])
      )
    ];
    this._resize(titles.filter(Boolean).length);
    this._all = row === null ? scene.ranks.length : 1;
    this._parts.forEach(({ node, title, text, chart }, at) => {
      node.hidden = !titles[at];
      if (!node.hidden) {
        const factor = at === 0 ? this._all : 1;
        chart.draw({ ...scene, factor });
        setText(title, titles[at] || '');
        title.title = titles[at] || '';
        setText(text, this._describe(chart));
        text.title = text.textContent ?? ''; // it may be cut
      }
    });
  }

  /** The newest value; where one is not finite, which iteration was the first. */
  private _describe({ state: { latest, broken } }: SmallChart): string {
    const value = latest === latest ? digits(latest) : '–';
    return broken < 0
      ? value
      : this._trans.__('%1; not finite in iteration %2', value, count(broken));
  }

  /** Share the width among those that are shown. */
  private _resize(shown: number): void {
    if (shown !== this._shown && shown > 0) {
      this._shown = shown;
      const width = Math.floor((this._width - GAP * (shown - 1)) / shown);
      const least = Math.max(width, 2 * AXIS_WIDTH);
      this.charts.forEach(chart => chart.setSize(least, HEIGHT));
    }
  }

  private _parts: {
    node: HTMLElement;
    title: HTMLElement;
    text: HTMLElement;
    chart: SmallChart;
  }[];
  private _width = 300;
  private _shown = -1;
  private _all = 1;
}

function speed(column: IColumn, { factor = 1 }: IScene): IExtent {
  const mean = factor * column.means[MEANS.indexOf('samples_per_s')];
  return { mean, least: NaN, most: NaN, broken: -1 };
}

function readLogged(at: number): (column: IColumn) => IExtent {
  return column => column.logged[at];
}
