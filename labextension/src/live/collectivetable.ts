/**
 * The most expensive collectives, as a table that can be sorted by a click or a key on
 * the name of a column.
 */

import { isUnknown, IUnknown } from '../schema/known';
import { element, FigureSpan, keepKeys, setText } from './dom';
import { bandwidth, bytes, IFigureText, percent, time } from './format';
import { ICollective, numberOf } from './protocol';
import { ITranslate } from '../common/translate';

interface ITableColumn {
  label: string;
  title: string;
  /** The sort key. */
  key: (one: ICollective) => number | string;
  /** A name, or a figure with its unit. */
  text: (one: ICollective) => string | IFigureText | IUnknown;
}

interface ICell {
  node: HTMLTableCellElement;
  figure: FigureSpan;
}

export class CollectiveTable {
  constructor(trans: ITranslate) {
    this._columns = columns(trans);
    const head = element(
      'tr',
      '',
      ...this._columns.map((_, at) => this._head(at))
    );
    const table = element(
      'table',
      'jp-gw-Live-table jp-gw-Live-collectives',
      element('thead', '', head),
      this._body
    );
    table.setAttribute('aria-label', trans.__('Collectives'));
    const scroll = element('div', 'jp-gw-Live-scroll', table);
    scroll.tabIndex = 0;
    scroll.setAttribute('role', 'group');
    scroll.setAttribute('aria-label', trans.__('Collectives, scrollable'));
    keepKeys(this.node);
    this.node.append(
      element(
        'div',
        'jp-gw-Live-head',
        element('h4', 'jp-gw-Live-title', trans.__('Worst collectives')),
        this._scope
      ),
      scroll,
      this._none
    );
    this._mark();
  }

  readonly node = element('section', 'jp-gw-Live-section jp-gw-Live-worst');

  /**
   * Show collectives, or why there are none.
   *
   * @param scope - the iterations that they belong to, as text.
   */
  update(all: readonly ICollective[] | IUnknown, scope: string): void {
    setText(this._scope, scope);
    const none = isUnknown(all);
    this._none.hidden = !none;
    this._body.parentElement!.hidden = none;
    if (none) {
      setText(this._none, all.unknown);
    } else if (all !== this._shown) {
      this._shown = all;
      this._fill();
    }
  }

  private _head(at: number): HTMLTableCellElement {
    const { label, title } = this._columns[at];
    const button = element('button', 'jp-gw-Live-sort', label);
    button.type = 'button';
    button.title = title;
    button.addEventListener('click', () => this._sortBy(at));
    const cell = element('th', '', button);
    cell.scope = 'col';
    this._heads.push(cell);
    return cell;
  }

  private _sortBy(at: number): void {
    // Initially, names are sorted from A, figures from the largest.
    const upward = typeof this._columns[at].key(EMPTY) === 'string';
    this._upward = at === this._by ? !this._upward : upward;
    this._by = at;
    this._mark();
    this._fill();
  }

  private _mark(): void {
    this._heads.forEach((cell, at) => {
      const way = this._upward ? 'ascending' : 'descending';
      cell.setAttribute('aria-sort', at === this._by ? way : 'none');
    });
  }

  private _fill(): void {
    const { key } = this._columns[this._by];
    const way = this._upward ? 1 : -1;
    const sorted = [...this._shown].sort((a, b) => way * order(key(a), key(b)));
    while (this._rows.length < sorted.length) {
      this._rows.push(this._row());
    }
    this._rows.splice(sorted.length).forEach(([cell]) => {
      cell.node.parentElement?.remove();
    });
    sorted.forEach((one, i) => this._show(this._rows[i], one));
  }

  private _row(): ICell[] {
    const cells = this._columns.map((_, at) => {
      const figure = new FigureSpan();
      const node = element(at === 0 ? 'th' : 'td', '', figure.node);
      if (at === 0) {
        node.scope = 'row';
      }
      return { node, figure };
    });
    this._body.append(element('tr', '', ...cells.map(cell => cell.node)));
    return cells;
  }

  private _show(cells: ICell[], one: ICollective): void {
    cells[0].node.title = one.name;
    cells.forEach(({ figure }, at) => {
      const text = this._columns[at].text(one);
      if (typeof text === 'string') {
        figure.show(text);
      } else if (isUnknown(text)) {
        figure.unknown(text.unknown);
      } else {
        figure.show(text.value, text.unit);
      }
    });
  }

  private _columns: readonly ITableColumn[];
  private _heads: HTMLTableCellElement[] = [];
  private _body = element('tbody', '');
  private _scope = element('span', 'jp-gw-Live-legend');
  private _none = element('div', 'jp-gw-Live-none');
  private _rows: ICell[][] = [];
  private _shown: readonly ICollective[] = [];
  private _by = 7;
  private _upward = false;
}

const EMPTY: ICollective = {
  name: '',
  kind: '',
  process_set: 0,
  by: '',
  bytes: 0,
  mean_us: 0,
  queued_us: 0,
  transfer_us: 0,
  busbw_gbps: 0,
  exposed_share: 0
};

function columns(trans: ITranslate): readonly ITableColumn[] {
  return [
    {
      label: trans.__('Name'),
      title: trans.__('Name used by the library'),
      key: one => one.name,
      text: one => one.name
    },
    {
      label: trans.__('Kind'),
      title: trans.__('Operation, and its caller'),
      key: one => kindOf(one, trans),
      text: one => kindOf(one, trans)
    },
    {
      label: trans.__('Size'),
      title: trans.__('Bytes on the wire per call'),
      key: one => one.bytes,
      text: one => bytes(one.bytes)
    },
    {
      label: trans.__('Time'),
      title: trans.__('Mean from submitted to finished, including queueing'),
      key: one => one.mean_us,
      text: one => time(one.mean_us)
    },
    {
      label: trans.__('Queued'),
      title: trans.__(
        'Mean until all ranks had submitted it, and earlier ones were done'
      ),
      key: one => numberOf(one.queued_us),
      text: one =>
        isUnknown(one.queued_us) ? one.queued_us : time(one.queued_us)
    },
    {
      label: trans.__('Transfer'),
      title: trans.__('Mean time of the transfer itself'),
      key: one => numberOf(one.transfer_us),
      text: one =>
        isUnknown(one.transfer_us) ? one.transfer_us : time(one.transfer_us)
    },
    {
      label: trans.__('Busbw'),
      title: trans.__('Bus bandwidth over that time'),
      key: one => numberOf(one.busbw_gbps),
      text: one =>
        isUnknown(one.busbw_gbps) ? one.busbw_gbps : bandwidth(one.busbw_gbps)
    },
    {
      label: trans.__('Of exposed'),
      title: trans.__('Share of the exposed communication'),
      key: one => one.exposed_share,
      text: one => percent(one.exposed_share)
    }
  ];
}

/** The operation of a collective, its other rank, its group and its caller. */
function kindOf(one: ICollective, trans: ITranslate): string {
  const parts = [one.kind];
  if ((one.peer ?? -1) >= 0) {
    parts.push(trans.__('with rank %1', one.peer!));
  }
  if (one.group) {
    parts.push(one.group);
  } else if (one.process_set) {
    parts.push(trans.__('process set %1', one.process_set));
  }
  if (one.by === 'cell') {
    parts.push(trans.__('by the cell'));
  }
  return parts.join(' · ');
}

/** Sort figures by size, with unknown ones as the smallest, and names alphabetically. */
function order(a: number | string, b: number | string): number {
  if (typeof a === 'string' || typeof b === 'string') {
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }
  return (Number.isNaN(a) ? -1 : a) - (Number.isNaN(b) ? -1 : b);
}
