/**
 * The line below the key figures: the current selection, or the rank that the others
 * wait for.
 */

import { element, setText } from './dom';
import { count, time } from './format';
import { IN_TIME, phaseName } from './phases';
import { IStraggler } from './protocol';
import { ITranslate } from '../common/translate';

export interface IStatusActions {
  /** Clear the selection. */
  clear(): void;
  /** Select iterations, `to` exclusive. */
  select(from: number, to: number): void;
}

/** A selection, and the source of its figures. */
export interface ISelection {
  first: number;
  last: number;
  source: 'kernel' | 'page' | 'asked';
}

export class StatusLine {
  constructor(
    private _trans: ITranslate,
    actions: IStatusActions
  ) {
    for (const button of [this._clear, this._show]) {
      button.type = 'button';
    }
    setText(this._clear, _trans.__('Clear (Esc)'));
    setText(this._show, _trans.__('Show'));
    this._clear.addEventListener('click', () => actions.clear());
    this._show.addEventListener('click', () => {
      if (this._late) {
        const { first_iteration, last_iteration } = this._late;
        actions.select(first_iteration, last_iteration + 1);
      }
    });
    this.node.append(this._text, this._show, this._clear);
  }

  readonly node = element('div', 'jp-gw-Live-statusLine');

  /** Show the selection, or the newest straggler, or nothing. */
  update(
    selected: ISelection | null,
    late: IStraggler | null,
    latest: number
  ): void {
    this._late = late;
    this._clear.hidden = selected === null;
    this._show.hidden = selected !== null || late === null;
    // Not announced, because the figures of a late rank change every second.
    this._text.setAttribute('aria-live', selected ? 'polite' : 'off');
    this.node.dataset.kind = selected
      ? 'selected'
      : late
        ? 'straggler'
        : 'none';
    if (selected) {
      const who = late ? ` ${stragglerText(late, latest, this._trans)}` : '';
      setText(this._text, this._selected(selected) + who);
    } else {
      setText(this._text, late ? stragglerText(late, latest, this._trans) : '');
    }
  }

  private _selected({ first, last, source }: ISelection): string {
    const trans = this._trans;
    const [from, to] = [count(first), count(last)];
    switch (source) {
      case 'kernel':
        return trans.__(
          'Iterations %1 to %2 are selected: the figures, bars and table describe them.',
          from,
          to
        );
      case 'asked':
        return trans.__(
          'Iterations %1 to %2 are selected: the figures, bars and table describe them, from this page until the kernel answers.',
          from,
          to
        );
      case 'page':
        return trans.__(
          'Iterations %1 to %2 are selected: the figures, bars and table describe them, from this page only, because no kernel answers.',
          from,
          to
        );
    }
  }

  private _late: IStraggler | null = null;
  private _text = element('span', 'jp-gw-Live-statusText');
  private _show = element('button', 'jp-gw-Live-link');
  private _clear = element('button', 'jp-gw-Live-link');
}

/** A late rank counts as still late for this number of iterations. */
const RECENT = 40;

/** Which rank or link is slow, since when, and its cost, in one sentence. */
function stragglerText(
  late: IStraggler,
  latest: number,
  trans: ITranslate
): string {
  const isCurrent = latest - late.last_iteration <= RECENT;
  const first = count(late.first_iteration);
  const last = count(late.last_iteration);
  const longer = duration(late.excess_us);
  const wait = duration(late.late_us);
  if (late.rank < 0) {
    return isCurrent
      ? trans.__('Slow link since iteration %1: communication takes %2 longer.', first, longer) // prettier-ignore
      : trans.__('Slow link in iterations %1 to %2: communication took %3 longer.', first, last, longer); // prettier-ignore
  }
  const phase = IN_TIME.find(one => one.column === `${late.phase}_us`);
  if (!phase) {
    return isCurrent
      ? trans.__('Rank %1 late since iteration %2, in no particular phase; the others wait %3.', late.rank, first, wait) // prettier-ignore
      : trans.__('Rank %1 late in iterations %2 to %3, in no particular phase; the others waited %4.', late.rank, first, last, wait); // prettier-ignore
  }
  const name = phaseName(phase, trans);
  return isCurrent
    ? trans.__('Rank %1 late since iteration %2: %3 takes %4 longer; the others wait %5.', late.rank, first, name, longer, wait) // prettier-ignore
    : trans.__('Rank %1 late in iterations %2 to %3: %4 took %5 longer; the others waited %6.', late.rank, first, last, name, longer, wait); // prettier-ignore
}

function duration(us: number): string {
  const { value, unit } = time(us);
  return `${value} ${unit}`;
}
