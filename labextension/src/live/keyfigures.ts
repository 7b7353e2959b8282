/**
 * The key figures bar at the top of the view.
 */

import { isUnknown, Known } from '../schema/known';
import { element, FigureSpan } from './dom';
import { count, digits, IFigureText, percent, time } from './format';
import { ISummary, numberOf } from './protocol';
import { ITranslate } from '../common/translate';

export class KeyFiguresBar {
  constructor(trans: ITranslate) {
    this._trans = trans;
    const exposed = this._group(
      [trans.__('exposed'), this._exposed],
      ['', this._share],
      [trans.__('waiting'), this._waiting],
      [trans.__('queueing'), this._queued],
      [trans.__('transfer'), this._transfer]
    );
    exposed.classList.add('jp-gw-Live-loud');
    this.node.append(
      this._group([trans.__('iteration'), this._iteration]),
      this._group(['', this._rate]),
      this._group(['', this._time]),
      exposed,
      this._group(
        [trans.__('busbw'), this._busbw],
        [trans.__('nominal'), this._nominal],
        [trans.__('calibrated'), this._calibrated]
      ),
      this._group([trans.__('over'), this._transport]),
      this._group([trans.__('waiting for'), this._slowest]),
      this._group(['', this._progress]),
      this._group(['', this._scope])
    );
  }

  readonly node = element('div', 'jp-gw-Live-keyFigures');

  /**
   * Show the figures of the newest iterations, or of a selection.
   *
   * @param first - the first iteration of the selection.
   */
  update(summary: ISummary, first: number | null = null): void {
    const from = first === null ? '' : `${count(first)}–`;
    show(this._iteration, summary.iteration, last => ({
      value: `${from}${count(last)}`,
      unit: ''
    }));
    this._showScope(summary, first);
    show(this._rate, summary.iterations_per_s, inUnit(digits, 'it/s'));
    show(this._time, summary.iteration_us, time);
    show(this._exposed, summary.exposed_us, time);
    const untold = {
      unknown: this._trans.__('an earlier version wrote this output')
    };
    show(this._share, summary.exposed_share, inUnit(percent));
    show(this._waiting, summary.waiting_us ?? untold, time);
    show(this._queued, summary.queued_us ?? untold, time);
    show(this._transfer, summary.transfer_us ?? untold, time);
    show(this._busbw, summary.busbw_gbps, inUnit(digits, 'Gbit/s'));
    show(this._nominal, summary.nominal_gbps, inUnit(digits));
    showText(this._transport, summary.transport ?? untold);
    showText(this._progress, summary.progress ?? untold);
    const error = numberOf(summary.calibrated_error ?? NaN);
    const sure = error === error ? `± ${percent(error)}` : '';
    show(this._calibrated, summary.calibrated_gbps, inUnit(digits, sure));
    const means = this._trans.__('Means over iterations and ranks.');
    this.node.title = [means, ...(summary.notes ?? [])].join(' ');
    this._showSlowest(summary);
  }

  /** Say over which iterations the means are; the newest one may be later. */
  private _showScope(summary: ISummary, first: number | null): void {
    const from = numberOf(first ?? summary.first_iteration ?? NaN);
    const to = first === null ? summary.last_iteration : summary.iteration;
    const last = numberOf(to ?? NaN);
    this._scope.show(
      from < last
        ? this._trans.__(
            'Mean of iterations %1 to %2',
            count(from),
            count(last)
          )
        : ''
    );
  }

  private _showSlowest(summary: ISummary): void {
    const { slowest_rank: rank, slowest_excess_us: excess } = summary;
    if (isUnknown(rank)) {
      this._slowest.unknown(rank.unknown);
      return;
    }
    const name = this._trans.__('rank %1', rank);
    if (isUnknown(excess)) {
      this._slowest.show(name);
      return;
    }
    const { value, unit } = time(excess);
    this._slowest.show(name, `+${value} ${unit}`);
  }

  private _group(...parts: [string, FigureSpan][]): HTMLElement {
    const group = element('span', 'jp-gw-Live-group');
    for (const [label, figure] of parts) {
      const pair = element('span', 'jp-gw-Live-pair');
      if (label) {
        pair.append(element('span', 'jp-gw-Live-label', label));
      }
      pair.append(figure.node);
      group.append(pair);
    }
    return group;
  }

  private _trans: ITranslate;
  private _iteration = new FigureSpan('jp-gw-Live-iteration');
  private _rate = new FigureSpan('jp-gw-Live-rate');
  private _time = new FigureSpan('jp-gw-Live-time');
  private _exposed = new FigureSpan('jp-gw-Live-time');
  private _share = new FigureSpan('jp-gw-Live-share');
  private _waiting = new FigureSpan('jp-gw-Live-part');
  private _queued = new FigureSpan('jp-gw-Live-part');
  private _transfer = new FigureSpan('jp-gw-Live-part');
  private _busbw = new FigureSpan('jp-gw-Live-bandwidth');
  private _nominal = new FigureSpan('jp-gw-Live-nominal');
  private _calibrated = new FigureSpan('jp-gw-Live-nominal');
  private _transport = new FigureSpan('jp-gw-Live-transport');
  private _progress = new FigureSpan('jp-gw-Live-soFar');
  private _slowest = new FigureSpan('jp-gw-Live-slowest');
  private _scope = new FigureSpan('jp-gw-Live-scope');
}

function show(
  figure: FigureSpan,
  known: Known<number>,
  text: (value: number) => IFigureText
): void {
  if (isUnknown(known)) {
    figure.unknown(known.unknown);
    return;
  }
  const { value, unit } = text(known);
  figure.show(value, unit);
}

function showText(figure: FigureSpan, known: Known<string>): void {
  if (isUnknown(known)) {
    figure.unknown(known.unknown);
    return;
  }
  figure.show(known);
  figure.node.title = known;
}

/** Format a figure that always has the same unit, if any. */
function inUnit(
  text: (value: number) => string,
  unit = ''
): (value: number) => IFigureText {
  return value => ({ value: text(value), unit });
}
