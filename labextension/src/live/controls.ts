/**
 * The view's controls. They act in the browser only: a paused or zoomed view
 * continues to collect, and the kernel is not involved.
 */

import { isUnknown, Known } from '../schema/known';
import { element, FigureSpan, keepKeys, setText } from './dom';
import { EarlierChoice } from './earlier';
import { count } from './format';
import { IRankPlace, IStatus } from './protocol';
import { Mode } from './range';
import { ITranslate } from '../common/translate';

/** Options for how many of the newest iterations are followed; null means all. */
export const SPANS: readonly (number | null)[] = [100, 400, 2000, null];

export interface IControlActions {
  pause(): void;
  follow(): void;
  chooseRank(row: number | null): void;
  chooseSpan(iterations: number | null): void;
}

export class Controls {
  constructor(
    trans: ITranslate,
    readonly earlier: EarlierChoice,
    actions: IControlActions
  ) {
    this._trans = trans;
    this._pause.addEventListener('click', () => actions.pause());
    this._follow.addEventListener('click', () => actions.follow());
    this._rank.addEventListener('change', () => {
      actions.chooseRank(
        this._rank.value === 'all' ? null : Number(this._rank.value)
      );
    });
    this._span.addEventListener('change', () => {
      actions.chooseSpan(
        this._span.value === 'all' ? null : Number(this._span.value)
      );
    });
    for (const span of SPANS) {
      const text =
        span === null ? trans.__('All kept') : trans.__('Last %1', count(span));
      this._span.append(new Option(text, String(span ?? 'all')));
    }
    this._span.value = '400';
    this._pause.type = this._follow.type = 'button';
    setText(this._follow, trans.__('Follow'));
    this._follow.title = trans.__(
      'Show the newest iterations again (or double-click a chart)'
    );
    this._state.setAttribute('role', 'status');
    keepKeys(this.node);
    this.node.append(
      this._pause,
      this._follow,
      labelled(trans.__('Rank'), this._rank),
      labelled(trans.__('Iterations'), this._span),
      labelled(trans.__('Compare with'), earlier.node),
      element('span', 'jp-gw-Live-drops', this._dropped.node),
      this._state
    );
  }

  readonly node = element('div', 'jp-gw-Live-controls');

  setRanks(ranks: readonly IRankPlace[]): void {
    const key = ranks.map(place => `${place.rank}@${place.vm}`).join();
    if (key === this._ranksKey) {
      return;
    }
    this._ranksKey = key;
    const options = ranks.map(
      ({ rank, vm }, row) =>
        new Option(vm ? `${rank} · ${vm}` : `${rank}`, String(row))
    );
    const all = new Option(this._trans.__('All (mean)'), 'all');
    this._rank.replaceChildren(all, ...options);
  }

  /** Show the state of the view. */
  update(status: IStatus, mode: Mode, note: string): void {
    const trans = this._trans;
    const paused = mode === 'pause';
    setText(this._pause, paused ? trans.__('Resume') : trans.__('Pause'));
    this._pause.setAttribute('aria-pressed', String(paused));
    this._pause.disabled =
      mode === 'select' || (status.state === 'ended' && !paused);
    this._follow.disabled = mode === 'follow';
    this._showDropped(status.summary.dropped);
    const said = paused
      ? trans.__('paused, still collecting')
      : note || status.message;
    this._state.dataset.state = paused ? 'paused' : status.state;
    setText(this._state, said);
    this._state.title = said;
  }

  private _showDropped(dropped: Known<number>): void {
    if (isUnknown(dropped)) {
      this._dropped.unknown(dropped.unknown);
    } else {
      this._dropped.show(count(dropped), this._trans.__('dropped'));
    }
    this._dropped.node.classList.toggle(
      'jp-gw-Live-warn',
      typeof dropped === 'number' && dropped > 0
    );
  }

  private _trans: ITranslate;
  private _pause = element('button', 'jp-gw-Live-button');
  private _follow = element('button', 'jp-gw-Live-button');
  private _rank = element('select', 'jp-gw-Live-select');
  private _span = element('select', 'jp-gw-Live-select');
  private _dropped = new FigureSpan();
  private _state = element('span', 'jp-gw-Live-state');
  private _ranksKey = '?';
}

function labelled(text: string, control: HTMLElement): HTMLElement {
  return element(
    'label',
    'jp-gw-Live-choice',
    element('span', 'jp-gw-Live-label', text),
    control
  );
}
