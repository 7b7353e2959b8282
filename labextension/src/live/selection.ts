/**
 * What a selection of iterations cost, from the timings that the page holds.
 */

import { isUnknown, IUnknown, Known } from '../schema/known';
import { ISpan, newest, spanMean } from './decimate';
import { Figure, ISummary } from './protocol';
import { IRange } from './range';
import { TimingStore } from './store';
import { ITranslate } from './text';

/** A rank is named when it arrives last in this share of the iterations... */
const OFTEN = 0.7;

/** ...and the others wait for it for this share of the iteration: as in Python. */
const EXCESS = 0.05;

/** The iterations of a range that are held, read when it is asked of them. */
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

  /** Whether it is still what the store holds of that range. */
  isOf(range: IRange): boolean {
    return (
      this.first === Math.max(range.from, this._store.first) &&
      this.last === Math.min(range.to - 1, this._store.last) &&
      this._stamp === this._newest()
    );
  }

  /**
   * The mean of a figure, of one rank (by row) or of all (null). The first
   * iteration of a cell is left out where there are others, as in Python.
   */
  mean(name: Figure, row: number | null): number {
    const key = `${name} ${row}`;
    let mean = this._means.get(key);
    if (mean === undefined) {
      const warm = this._leftOut > 0;
      mean = spanMean(this._store, name, this._span, row, warm);
      this._means.set(key, mean);
    }
    return mean;
  }

  /** Its key figures; what no row says is taken from those of the run. */
  summary(of: ISummary, trans: ITranslate): ISummary {
    this._summary ??= this._summarize(of, trans);
    return this._summary;
  }

  private _summarize(of: ISummary, trans: ITranslate): ISummary {
    const none = { unknown: trans.__('no iteration of these is held') };
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
      busbw_gbps: known(
        this.mean('busbw_gbps', null),
        silent
          ? unseen
          : { unknown: trans.__('no gradients were reduced between ranks') }
      ),
      notes: this._leftOut
        ? [
            trans.__(
              'The first iterations of cells are left out: they warm up.'
            )
          ]
        : [],
      ...this._slowest(iteration, trans)
    };
  }

  private _slowest(
    typical: number,
    trans: ITranslate
  ): Pick<ISummary, 'slowest_rank' | 'slowest_excess_us'> {
    const excess = this._store.ranks.map((): number[] => []);
    let whole = 0;
    for (let iteration = this.first; iteration <= this.last; iteration++) {
      const waits = this._store.ranksOf('wait_us', iteration);
      if (waits.length > 1 && waits.every(wait => wait === wait)) {
        whole++;
        excess[waits.indexOf(Math.min(...waits))].push(Math.max(...waits));
      }
    }
    const row = excess.reduce(
      (best, one, at) => (one.length > excess[best].length ? at : best),
      0
    );
    const us = median(excess[row] ?? []);
    if ((excess[row]?.length ?? 0) >= OFTEN * whole && us >= EXCESS * typical) {
      const slowest_rank = this._store.ranks[row].rank;
      return { slowest_rank, slowest_excess_us: us };
    }
    const why = { unknown: trans.__('no rank arrives last throughout') };
    return { slowest_rank: why, slowest_excess_us: why };
  }

  /** First iterations of cells that the means leave out: none where there are no others. */
  private get _leftOut(): number {
    if (this._firsts === null) {
      this._firsts = 0;
      let others = false;
      for (let iteration = this.first; iteration <= this.last; iteration++) {
        const first = this._store.isFirst(iteration);
        this._firsts += Number(first);
        others ||= !first;
      }
      this._firsts *= Number(others);
    }
    return this._firsts;
  }

  private _newest(): number {
    return newest(this._store, this._span);
  }

  private get _span(): ISpan {
    return { from: this.first, to: this.last + 1 };
  }

  private _stamp: number;
  private _firsts: number | null = null;
  private _means = new Map<string, number>();
  private _summary: ISummary | null = null;
}

function median(values: readonly number[]): number {
  const sorted = Float64Array.from(values).sort();
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
}
