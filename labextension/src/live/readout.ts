/**
 * All figures of one iteration or a selection, and the legend of the phases with their times.
 */

import { element, FigureSpan, setText, swatch } from './dom';
import { count, digits, milliseconds, percent } from './format';
import {
  COPY,
  EXPOSED,
  IN_TIME,
  IPhase,
  OVERLAPPED,
  phaseName
} from './phases';
import { Figure, IRankPlace, LeftOut } from './protocol';
import { IReading } from './reading';
import { ITranslate } from '../common/translate';

interface IPhaseRow {
  phase: IPhase;
  time: FigureSpan;
  share: FigureSpan;
}

interface IFigureRow {
  value: (read: (name: Figure) => number) => number;
  text: (value: number) => string;
  /** The reason if it is unknown. */
  reason: string;
}

export class Readout {
  constructor(trans: ITranslate) {
    this._trans = trans;
    const phases = this._table(trans.__('Phases'), [
      this._who,
      trans.__('ms'),
      trans.__('share')
    ]);
    for (const phase of [...IN_TIME, OVERLAPPED]) {
      phases.append(this._phaseRow(phase));
    }
    const figures = this._table(trans.__('Figures'), []);
    this._addFigures(figures);
    this.node.append(phases, figures);
  }

  readonly node = element('div', 'jp-gw-Live-readout');

  /** Show a reading of one rank (by row), or the mean over ranks (null). */
  update(
    ranks: readonly IRankPlace[],
    reading: IReading,
    row: number | null
  ): void {
    const place = row === null ? null : ranks[row];
    const mean = this._trans.__('Mean of ranks');
    setText(this._who, place ? this._trans.__('Rank %1', place.rank) : mean);
    const read = (name: Figure): number => reading(name, row);
    const total = read('iteration_us');
    this._copies ||= read(COPY.column) > 0;
    this._copyRow.hidden = !this._copies;
    for (const { phase, time, share } of this._phases) {
      const value = read(phase.column);
      if (value !== value) {
        const reason = this._trans.__('not recorded for this iteration');
        time.unknown(reason);
        share.unknown(reason);
      } else {
        time.show(milliseconds(value));
        share.show(phase === OVERLAPPED ? '' : percent(value / total));
      }
    }
    for (const { value, text, reason, figure } of this._figures) {
      const known = value(read);
      if (known === known) {
        figure.show(text(known));
      } else {
        figure.unknown(reason);
      }
    }
  }

  private _phaseRow(phase: IPhase): HTMLElement {
    const [time, share] = [new FigureSpan(), new FigureSpan()];
    this._phases.push({ phase, time, share });
    const name = element(
      'th',
      '',
      swatch(phase.color, phase.edge, phase === OVERLAPPED),
      phaseName(phase, this._trans)
    );
    name.scope = 'row';
    const row = element('tr', '', name, cell(time), cell(share));
    row.classList.toggle('jp-gw-Live-loud', phase === EXPOSED);
    if (phase === COPY) {
      this._copyRow = row;
    }
    return row;
  }

  private _addFigures(table: HTMLElement): void {
    for (const { label, unit, ...row } of figureRows(this._trans)) {
      const figure = new FigureSpan();
      this._figures.push({ ...row, figure });
      const name = element('th', '', label);
      name.scope = 'row';
      const grey = element('td', 'jp-gw-Live-unit', unit);
      table.append(element('tr', '', name, cell(figure), grey));
    }
  }

  private _table(name: string, heads: (string | Node)[]): HTMLTableElement {
    const cells = heads.map(head => {
      const th = element('th', '', head);
      th.scope = 'col';
      return th;
    });
    const table = element('table', 'jp-gw-Live-table');
    table.setAttribute('aria-label', name);
    if (cells.length > 0) {
      table.append(element('tr', '', ...cells));
    }
    return table;
  }

  private _trans: ITranslate;
  private _copyRow!: HTMLElement;
  private _copies = false;
  private _who = element('span', '');
  private _phases: IPhaseRow[] = [];
  private _figures: (IFigureRow & { figure: FigureSpan })[] = [];
}

function figureRows(
  trans: ITranslate
): (IFigureRow & { label: string; unit: string })[] {
  const untimed = trans.__('no communication was timed in this iteration');
  const missing = trans.__('not recorded for this iteration');
  const row = (
    label: string,
    unit: string,
    column: Figure,
    text: IFigureRow['text'],
    reason: string
  ): IFigureRow & { label: string; unit: string } => ({
    label,
    unit,
    value: read => read(column),
    text,
    reason
  });
  return [
    row(trans.__('iteration'), 'ms', 'iteration_us', milliseconds, missing),
    row(trans.__('communication'), 'ms', 'communication_us', milliseconds, untimed), // prettier-ignore
    {
      ...row(trans.__('overlapped'), '', 'overlapped_us', percent, untimed),
      value: overlap
    },
    row(trans.__('waiting'), 'ms', 'wait_us', milliseconds, missing),
    row(trans.__('queueing'), 'ms', 'queued_us', milliseconds, missing),
    row(trans.__('transfer'), 'ms', 'transfer_us', milliseconds, missing),
    row(trans.__('busbw'), 'Gbit/s', 'busbw_gbps', digits, untimed),
    row(trans.__('algbw'), 'Gbit/s', 'algbw_gbps', digits, untimed),
    row(trans.__('ended at'), 's', 'end_s', digits, missing)
  ];
}

/** The share of the communication that was hidden behind compute. */
function overlap(read: (name: Figure) => number): number {
  const all = read('communication_us');
  return all > 0 ? read('overlapped_us') / all : NaN;
}

function cell(figure: FigureSpan): HTMLElement {
  return element('td', '', figure.node);
}

/** A sentence that describes the bars, for users of screen readers. */
export function describe(
  trans: ITranslate,
  title: string,
  reading: IReading,
  row: number | null
): string {
  return trans.__(
    '%1 took %2 ms, of which %3 ms were exposed communication',
    title,
    milliseconds(reading('iteration_us', row)),
    milliseconds(reading('exposed_us', row))
  );
}

/** The title of the one-iteration column. */
export class ReadoutTitle {
  readonly node = element('h4', 'jp-gw-Live-title');

  /** Name one iteration, or a selection, and return that. */
  update(
    trans: ITranslate,
    first: number,
    last: number,
    latest: boolean,
    mark: LeftOut
  ): string {
    const name =
      first === last
        ? this._one(trans, count(last), mark)
        : trans.__('Mean of iterations %1 to %2', count(first), count(last));
    setText(this.node, latest ? trans.__('%1 · latest', name) : name);
    return name;
  }

  private _one(trans: ITranslate, number: string, mark: LeftOut): string {
    switch (mark) {
      case LeftOut.First:
        return trans.__('Iteration %1 · first of its cell', number);
      case LeftOut.Profiled:
        return trans.__('Iteration %1 · profiled', number);
      case LeftOut.No:
        return trans.__('Iteration %1', number);
    }
  }
}
