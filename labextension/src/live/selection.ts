/**
 * The cost of a selection of iterations, from the timings on the page.
 */

import { isUnknown, IUnknown, Known } from '../schema/known';
import { ISpan, newest, spanMean } from './decimate';
import { Figure, ISummary, LeftOut } from './protocol';
import { IRange } from './range';
import { TimingStore } from './store';
import { ITranslate } from '../common/translate';

/** A rank is named if it is last in this share of the iterations... */
const OFTEN = 0.7;

/** ...and the others wait for it for this share of the iteration, as in Python. */
const EXCESS = 0.05;

/** The stored iterations of a range, evaluated on demand. */
export class Selection {
  constructor(
    private _store: TimingStore,
    range: IRange
  ) {
    this.first = Math.max(range.from, _store.first);
    this.last = Math.min(range.to - 1, _store.last);
    this._stamp = this._newest();
  }

  /** The first and the last iteration, both included. */
  readonly first: number;
  readonly last: number;

  /** Whether the store still has the same data in that range. */
  isOf(range: IRange): boolean {
    return (
      this.first === Math.max(range.from, this._store.first) &&
      this.last === Math.min(range.to - 1, this._store.last) &&
      this._stamp === this._newest()
    );
  }

  /**
   * The mean of a figure, of one rank (by row) or of all (null). First iterations
   * of cells and profiled ones are left out if there are others, as in Python.
   */
  mean(name: Figure, row: number | null): number {
    const key = `${name} ${row}`;
    let mean = this._means.get(key);
    if (mean === undefined) {
      mean = spanMean(this._store, name, this._span, row, this._kept);
      this._means.set(key, mean);
    }
    return mean;
  }

  /** Its key figures; those that are not in the rows are taken from the run. */
  summary(of: ISummary, trans: ITranslate): ISummary {
    this._summary ??= this._summarize(of, trans);
    return this._summary;
  }

  private _summarize(of: ISummary, trans: ITranslate): ISummary {
    const none = { unknown: trans.__('none of these iterations is stored') };
    const known = (value: number, why: IUnknown = none): Known<number> =>
      Number.isFinite(value) ? value : why;
    const iteration = this.mean('iteration_us', null);
    const exposed = this.mean('exposed_us', null);
    const unseen = isUnknown(of.exposed_us) ? of.exposed_us : none;
    const silent = isUnknown(of.busbw_gbps) && isUnknown(of.exposed_us);
    return {
      ...of,
      iteration: known(this.last),
      iterations_per_s: known(1e6 / iteration),
      iteration_us: known(iteration),
      exposed_us: known(exposed, unseen),
      exposed_share: known(exposed / iteration, unseen),
      ...this._parts(exposed, trans),
      busbw_gbps: known(
        this.mean('busbw_gbps', null),
        silent
          ? unseen
          : { unknown: trans.__('no gradients were reduced between ranks') }
      ),
      notes: this._notes(trans),
      ...this._slowest(iteration, trans)
    };
  }

  private _notes(trans: ITranslate): string[] {
    const notes: string[] = [];
    if (this._found.has(LeftOut.First) && this._kept !== LeftOut.First) {
      notes.push(
        trans.__('The first iterations of cells are left out: they warm up.')
      );
    }
    if (this._found.has(LeftOut.Profiled)) {
      notes.push(
        this._kept === LeftOut.Profiled
          ? trans.__('The figures are of profiled iterations: the profiler changes their duration.') // prettier-ignore
          : trans.__('Profiled iterations are left out: the profiler changes their duration.') // prettier-ignore
      );
    }
    return notes;
  }

  /** The parts of the exposed time, divided as in the rows where they are known. */
  private _parts(
    exposed: number,
    trans: ITranslate
  ): Pick<ISummary, 'waiting_us' | 'queued_us' | 'transfer_us'> {
    const why = { unknown: trans.__('not recorded for these iterations') };
    const known = (value: number): Known<number> =>
      Number.isFinite(value) ? value : why;
    const [waited, stopped] = this._known('wait_us', 'exposed_us');
    const [transfer, queued] = this._known('transfer_us', 'queued_us');
    const part = (some: number, all: number): number =>
      exposed === 0 ? 0 : some / all;
    const waiting = exposed * part(waited, stopped);
    const share =
      transfer + queued === 0 ? 0 : part(transfer, transfer + queued);
    return {
      waiting_us: known(waiting),
      queued_us: known((exposed - waiting) * (1 - share)),
      transfer_us: known((exposed - waiting) * share)
    };
  }

  /** The sums of a part and of another figure, of the rows with exposed time where it is known. */
  private _known(part: Figure, other: Figure): [number, number] {
    let [sum, others] = [NaN, NaN];
    for (let iteration = this.first; iteration <= this.last; iteration++) {
      if (this._store.leftOut(iteration) !== this._kept) {
        continue;
      }
      const exposed = this._store.ranksOf('exposed_us', iteration);
      const parts = this._store.ranksOf(part, iteration);
      const rest = this._store.ranksOf(other, iteration);
      for (let at = 0; at < exposed.length; at++) {
        if (exposed[at] > 0 && parts[at] === parts[at]) {
          sum = (sum || 0) + parts[at];
          others = (others || 0) + rest[at];
        }
      }
    }
    return [sum, others];
  }

  private _slowest(
    typical: number,
    trans: ITranslate
  ): Pick<ISummary, 'slowest_rank' | 'slowest_excess_us'> {
    const excess = this._store.ranks.map((): number[] => []);
    let complete = 0;
    for (let iteration = this.first; iteration <= this.last; iteration++) {
      const waits = this._store.ranksOf('wait_us', iteration);
      const used = this._store.leftOut(iteration) === this._kept;
      if (used && waits.length > 1 && waits.every(wait => wait === wait)) {
        complete++;
        excess[waits.indexOf(Math.min(...waits))].push(Math.max(...waits));
      }
    }
    const row = excess.reduce(
      (best, one, at) => (one.length > excess[best].length ? at : best),
      0
    );
    const us = median(excess[row] ?? []);
    if (
      (excess[row]?.length ?? 0) >= OFTEN * complete &&
      us >= EXCESS * typical
    ) {
      const slowest_rank = this._store.ranks[row].rank;
      return { slowest_rank, slowest_excess_us: us };
    }
    const why = { unknown: trans.__('no rank is late throughout') };
    return { slowest_rank: why, slowest_excess_us: why };
  }

  /** Which iterations there are. */
  private get _found(): Set<LeftOut> {
    if (this._marks === null) {
      this._marks = new Set();
      for (let iteration = this.first; iteration <= this.last; iteration++) {
        this._marks.add(this._store.leftOut(iteration));
      }
    }
    return this._marks;
  }

  /** Which of them are used. */
  private get _kept(): LeftOut {
    const order = [LeftOut.No, LeftOut.Profiled, LeftOut.First];
    return order.find(mark => this._found.has(mark)) ?? LeftOut.No;
  }

  private _newest(): number {
    return newest(this._store, this._span);
  }

  private get _span(): ISpan {
    return { from: this.first, to: this.last + 1 };
  }

  private _stamp: number;
  private _marks: Set<LeftOut> | null = null;
  private _means = new Map<string, number>();
  private _summary: ISummary | null = null;
}

function median(values: readonly number[]): number {
  const sorted = Float64Array.from(values).sort();
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
}
