/**
 * The line under the key figures: which selection is answered for, or which rank
 * the others wait for.
 */

import { element, setText } from './dom';
import { count, time } from './format';
import { IN_TIME, phaseName } from './phases';
import { IStraggler } from './protocol';
import { ITranslate } from './text';

export interface IStatusActions {
  /** Leave the selection. */
  leave(): void;
  /** Select iterations, `to` exclusive. */
  select(from: number, to: number): void;
}

/** What a selection is, and where its figures come from. */
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
    for (const button of [this._leave, this._show]) {
      button.type = 'button';
    }
    setText(this._leave, _trans.__('leave (Esc)'));
    setText(this._show, _trans.__('show'));
    this._leave.addEventListener('click', () => actions.leave());
    this._show.addEventListener('click', () => {
      if (this._late) {
        const { first_iteration, last_iteration } = this._late;
        actions.select(first_iteration, last_iteration + 1);
      }
    });
    this.node.append(this._text, this._show, this._leave);
  }

  readonly node = element('div', 'jp-gw-Live-statusLine');

  /** Show the selection, or the newest straggler, or nothing. */
  update(
    selected: ISelection | null,
    late: IStraggler | null,
    latest: number
  ): void {
    this._late = late;
    this._leave.hidden = selected === null;
    this._show.hidden = selected !== null || late === null;
    // A late rank's figures change every second: nobody wants to hear each.
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
          'Iterations %1 to %2: figures, bars and table are of these.',
          from,
          to
        );
      case 'asked':
        return trans.__(
          'Iterations %1 to %2: figures, bars and table are of these, from this page until the kernel answers.',
          from,
          to
        );
      case 'page':
        return trans.__(
          'Iterations %1 to %2: figures, bars and table are of these, from what this page holds: no kernel answers now.',
          from,
          to
        );
    }
  }

  private _late: IStraggler | null = null;
  private _text = element('span', 'jp-gw-Live-statusText');
  private _show = element('button', 'jp-gw-Live-link');
  private _leave = element('button', 'jp-gw-Live-link');
}

/** Iterations after its last that a selection is still taken to go on. */
const RECENT = 40;

/** Which rank or link is slow, since when, and what it costs: one sentence. */
function stragglerText(
  late: IStraggler,
  latest: number,
  trans: ITranslate
): string {
  const goesOn = latest - late.last_iteration <= RECENT;
  const first = count(late.first_iteration);
  const last = count(late.last_iteration);
  const longer = duration(late.excess_us);
  const wait = duration(late.late_us);
  if (late.rank < 0) {
    return goesOn
      ? trans.__('A link is slow since iteration %1: communication takes %2 longer.', first, longer) // prettier-ignore
      : trans.__('A link is slow in iterations %1 to %2: communication takes %3 longer.', first, last, longer); // prettier-ignore
  }
  const phase = IN_TIME.find(one => one.label === late.phase);
  if (!phase) {
    return goesOn
      ? trans.__('Rank %1 is late since iteration %2, and no phase of its own says why: the others wait %3 for it.', late.rank, first, wait) // prettier-ignore
      : trans.__('Rank %1 is late in iterations %2 to %3, and no phase of its own says why: the others wait %4 for it.', late.rank, first, last, wait); // prettier-ignore
  }
  const name = phaseName(phase, trans);
  return goesOn
    ? trans.__('Rank %1 is late since iteration %2, by its %3 (%4 longer): the others wait %5 for it.', late.rank, first, name, longer, wait) // prettier-ignore
    : trans.__('Rank %1 is late in iterations %2 to %3, by its %4 (%5 longer): the others wait %6 for it.', late.rank, first, last, name, longer, wait); // prettier-ignore
}

function duration(us: number): string {
  const { value, unit } = time(us);
  return `${value} ${unit}`;
}
