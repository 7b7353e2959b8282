/**
 * The line under the key figures: which stretch is answered for, or which rank
 * the others wait for.
 */

import { element, setText } from './dom';
import { count, time } from './format';
import { IN_TIME, phaseName } from './phases';
import { IStraggler } from './protocol';
import { ITranslate } from './text';

export interface INoticeActions {
  /** Leave the stretch. */
  leave(): void;
  /** Mark a stretch, `to` exclusive. */
  mark(from: number, to: number): void;
}

/** What a marked stretch is, and where its figures come from. */
export interface IMarked {
  first: number;
  last: number;
  source: 'kernel' | 'page' | 'asked';
}

export class Notice {
  constructor(
    private _trans: ITranslate,
    actions: INoticeActions
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
        actions.mark(first_iteration, last_iteration + 1);
      }
    });
    this.node.append(this._text, this._show, this._leave);
  }

  readonly node = element('div', 'gw-live-notice');

  /** Show the stretch that is marked, or the newest straggler, or nothing. */
  update(
    marked: IMarked | null,
    late: IStraggler | null,
    latest: number
  ): void {
    this._late = late;
    this._leave.hidden = marked === null;
    this._show.hidden = marked !== null || late === null;
    // A late rank's figures change every second: nobody wants to hear each.
    this._text.setAttribute('aria-live', marked ? 'polite' : 'off');
    this.node.dataset.kind = marked ? 'marked' : late ? 'straggler' : 'none';
    if (marked) {
      const who = late ? ` ${this._straggler(late, latest)}` : '';
      setText(this._text, this._marked(marked) + who);
    } else {
      setText(this._text, late ? this._straggler(late, latest) : '');
    }
  }

  private _marked({ first, last, source }: IMarked): string {
    const trans = this._trans;
    const span = trans.__(
      'Iterations %1 to %2: figures, bars and table are of these',
      count(first),
      count(last)
    );
    const from = {
      kernel: '',
      asked: trans.__(', from this page until the kernel answers'),
      page: trans.__(', from what this page holds: no kernel answers now')
    };
    return `${span}${from[source]}.`;
  }

  private _straggler(late: IStraggler, latest: number): string {
    const trans = this._trans;
    const longer = time(late.excess_us);
    const wait = time(late.late_us);
    const now = latest - late.last_iteration <= RECENT;
    const when = now
      ? trans.__('since iteration %1', count(late.first_iteration))
      : trans.__(
          'in iterations %1 to %2',
          count(late.first_iteration),
          count(late.last_iteration)
        );
    if (late.rank < 0) {
      return trans.__(
        'A link is slow %1: communication takes %2 longer.',
        when,
        `${longer.value} ${longer.unit}`
      );
    }
    const phase = IN_TIME.find(one => one.label === late.phase);
    const why = phase
      ? trans.__(
          ', by its %1 (%2 longer)',
          phaseName(phase, trans),
          `${longer.value} ${longer.unit}`
        )
      : trans.__(', and no phase of its own says why');
    return trans.__(
      'Rank %1 is late %2%3: the others wait %4 for it.',
      late.rank,
      when,
      why,
      `${wait.value} ${wait.unit}`
    );
  }

  private _late: IStraggler | null = null;
  private _text = element('span', 'gw-live-notice-text');
  private _show = element('button', 'gw-live-link');
  private _leave = element('button', 'gw-live-link');
}

/** Iterations after its last that a stretch is still taken to go on. */
const RECENT = 40;
