/**
 * The verdict of the last cell in one line, and on request what slows down the
 * newest iterations.
 */

import { isUnknown, IUnknown, Known } from '../schema/known';
import { ICause, IVerdict } from './causes';
import { element, keepKeys, setText } from './dom';
import { TimingFeed } from './feed';
import { count, percent, time } from './format';
import { ITranslate } from '../common/translate';

export class VerdictLine {
  constructor(
    private _feed: TimingFeed,
    private _trans: ITranslate
  ) {
    for (const button of [this._explain, this._close]) {
      button.type = 'button';
    }
    setText(this._explain, _trans.__('Explain'));
    this._explain.title = _trans.__(
      'Show what slows down the newest iterations, and what each change would save'
    );
    setText(this._close, _trans.__('Close'));
    this._explain.addEventListener('click', () => this._open());
    this._close.addEventListener('click', () => this._shut());
    this._line.setAttribute('role', 'status');
    this._state.setAttribute('role', 'status');
    this._list.setAttribute('aria-label', _trans.__('Causes'));
    this._panel.id = `jp-gw-causes-${VerdictLine._panels++}`;
    this._panel.setAttribute('role', 'region');
    this._panel.setAttribute('aria-label', _trans.__('Explanation'));
    this._explain.setAttribute('aria-controls', this._panel.id);
    this._panel.append(
      element(
        'div',
        'jp-gw-Live-causesHead',
        element('h4', 'jp-gw-Live-title', _trans.__('What slows it down')),
        this._scope,
        this._close
      ),
      this._state,
      this._list
    );
    keepKeys(this.node);
    this.node.append(
      element('div', 'jp-gw-Live-verdictRow', this._explain, this._line),
      this._panel
    );
    this._stop = _feed.onChange(() => this._update());
    this._update();
  }

  readonly node = element('div', 'jp-gw-Live-verdict');

  dispose(): void {
    this._stop();
  }

  private _open(): void {
    this._panel.hidden = false;
    this._feed.explain();
    this._update();
  }

  private _shut(): void {
    this._panel.hidden = true;
    this._explain.focus();
    this._update();
  }

  private _update(): void {
    const trans = this._trans;
    const { verdict } = this._feed.status;
    setText(this._line, verdict ? trans.__('Verdict: %1.', verdict.text) : '');
    this._line.title = this._line.textContent ?? '';
    const isOpen = !this._panel.hidden;
    this._explain.setAttribute('aria-expanded', String(isOpen));
    if (!isOpen) {
      return;
    }
    const shown = this._newest();
    if (shown === null || isUnknown(shown)) {
      this._show(null);
      setText(this._state, shown ? shown.unknown : this._whyNone());
      return;
    }
    this._show(shown);
    setText(
      this._state,
      shown.causes.length
        ? ''
        : trans.__('Nothing visible here slows it down by 1 % or more.')
    );
  }

  /** The kernel's answer, unless the verdict is newer or, as in a saved notebook, all there is. */
  private _newest(): IVerdict | IUnknown | null {
    const verdict = this._feed.status.verdict ?? null;
    const { explanation } = this._feed;
    if (explanation === null || isUnknown(explanation) || verdict === null) {
      return explanation ?? verdict;
    }
    const isOlder = explanation.last_iteration < verdict.last_iteration;
    return isOlder ? verdict : explanation;
  }

  private _whyNone(): string {
    switch (this._feed.explaining) {
      case 'asked':
        return this._trans.__('Waiting for the kernel.');
      case 'late':
        return this._trans.__(
          'The kernel has not answered yet: it may answer at the end of the cell.'
        );
      case 'offline':
        return this._trans.__(
          'No kernel answers. Run the cells above, then try again.'
        );
    }
  }

  private _show(verdict: IVerdict | null): void {
    if (verdict === this._shown) {
      return;
    }
    this._shown = verdict;
    const trans = this._trans;
    const scope = verdict
      ? trans.__(
          'iterations %1 to %2',
          count(verdict.first_iteration),
          count(verdict.last_iteration)
        )
      : '';
    setText(this._scope, scope);
    this._list.replaceChildren(
      ...(verdict?.causes ?? []).map(one => this._cause(one))
    );
  }

  private _cause(one: ICause): HTMLLIElement {
    const trans = this._trans;
    const name = element('span', 'jp-gw-Live-causeName', one.name);
    const saving = element('span', 'jp-gw-Live-saving', this._saving(one));
    if (one.uncertainty) {
      saving.title = trans.__('Uncertainty: %1', one.uncertainty);
    }
    const item = element(
      'li',
      'jp-gw-Live-cause',
      element('div', 'jp-gw-Live-causeHead', name, saving),
      element('div', 'jp-gw-Live-evidence', one.evidence),
      this._labelled(trans.__('Change'), one.change)
    );
    if (one.measure) {
      item.append(this._labelled(trans.__('To measure'), one.measure));
    }
    return item;
  }

  private _saving({ saving_us, saving_share, bound }: ICause): string {
    const trans = this._trans;
    const known = (value: Known<number>): value is number => !isUnknown(value);
    if (!known(saving_us) || !known(saving_share)) {
      return trans.__('saving unknown');
    }
    const { value, unit } = time(saving_us);
    const text = `${value} ${unit}`;
    return bound
      ? trans.__('saves up to %1 (%2)', text, percent(saving_share))
      : trans.__('saves %1 (%2)', text, percent(saving_share));
  }

  private _labelled(label: string, text: string): HTMLElement {
    return element(
      'div',
      'jp-gw-Live-change',
      element('span', 'jp-gw-Live-label', label),
      ` ${text}`
    );
  }

  /** Numbers the panels of a page, for their ids. */
  private static _panels = 0;

  private _explain = element('button', 'jp-gw-Live-button');
  private _line = element('span', 'jp-gw-Live-verdictText');
  private _panel = Private.hidden(element('section', 'jp-gw-Live-causes'));
  private _scope = element('span', 'jp-gw-Live-legend');
  private _close = element('button', 'jp-gw-Live-link');
  private _state = element('div', 'jp-gw-Live-explainState');
  private _list = element('ol', 'jp-gw-Live-causeList');
  private _shown: IVerdict | null = null;
  private _stop: () => void;
}

namespace Private {
  export function hidden<T extends HTMLElement>(node: T): T {
    node.hidden = true;
    return node;
  }
}
