/**
 * The stages of pipelines, and for how long each waits for messages.
 */

import { isUnknown, IUnknown } from '../schema/known';
import { element, FigureSpan, keepKeys, setText } from './dom';
import { percent, time } from './format';
import { IStage } from './protocol';
import { ITranslate } from '../common/translate';

export class StageTable {
  constructor(private _trans: ITranslate) {
    const heads = [
      [_trans.__('Stage'), _trans.__('Position in its pipeline')],
      [_trans.__('Rank'), ''],
      [_trans.__('Idle'), _trans.__('Mean wait for messages per iteration')],
      [_trans.__('Of iteration'), ''],
      [_trans.__('If balanced'), _trans.__('The same with equally fast stages')]
    ].map(([label, title]) => {
      const cell = element('th', '', label);
      cell.scope = 'col';
      cell.title = title;
      return cell;
    });
    this._table = element(
      'table',
      'jp-gw-Live-table jp-gw-Live-collectives',
      element('thead', '', element('tr', '', ...heads)),
      this._body
    );
    this._table.setAttribute('aria-label', _trans.__('Pipeline stages'));
    keepKeys(this.node);
    const title = _trans.__('Pipeline stages');
    this.node.append(
      element('h4', 'jp-gw-Live-title', title),
      this._table,
      this._none
    );
    this.node.hidden = true;
  }

  readonly node = element('section', 'jp-gw-Live-section jp-gw-Live-stages');

  /** Show stages, or why they are unknown; nothing if no rank waits for messages. */
  update(stages: readonly IStage[] | IUnknown): void {
    if (stages === this._shown) {
      return;
    }
    this._shown = stages;
    const unknown = isUnknown(stages);
    this.node.hidden = !unknown && stages.length === 0;
    this._none.hidden = !unknown;
    this._table.hidden = unknown;
    setText(this._none, unknown ? stages.unknown : '');
    this._body.replaceChildren(
      ...(unknown ? [] : stages.map(one => this._row(one)))
    );
  }

  private _row(one: IStage): HTMLTableRowElement {
    const stage = this._trans.__('stage %1', one.stage);
    const head = element(
      'th',
      '',
      one.group ? `${one.group} · ${stage}` : stage
    );
    head.scope = 'row';
    const [idle, share, ideal] = [0, 1, 2].map(() => new FigureSpan());
    const { value, unit } = time(one.idle_us);
    idle.show(value, unit);
    share.show(percent(one.idle_share));
    if (isUnknown(one.ideal_share)) {
      ideal.unknown(one.ideal_share.unknown);
    } else {
      ideal.show(percent(one.ideal_share));
    }
    const cells = [idle, share, ideal].map(({ node }) =>
      element('td', '', node)
    );
    return element(
      'tr',
      '',
      head,
      element('td', '', String(one.rank)),
      ...cells
    );
  }

  private _shown: readonly IStage[] | IUnknown = [];
  private _table: HTMLTableElement;
  private _body = element('tbody', '');
  private _none = element('div', 'jp-gw-Live-none');
}
