/**
 * The iterations that a view describes: the newest ones, or a selection.
 */

import { IUnknown } from '../schema/known';
import { TimingFeed } from './feed';
import { count } from './format';
import { ICollective, IDetails, IStage, ISummary } from './protocol';
import { IRange } from './range';
import { IReading, ofSelection } from './reading';
import { Selection } from './selection';
import { ISelection } from './statusline';
import { ITranslate } from '../common/translate';

const NO_STAGES: readonly IStage[] = [];

export class Focus {
  constructor(
    private _feed: TimingFeed,
    private _trans: ITranslate
  ) {}

  /** Describe a selection from now on, or (null) the newest iterations. */
  set(range: IRange | null): void {
    if (range === null) {
      if (this._selection) {
        this._feed.forget();
      }
      this._selection = null;
      return;
    }
    if (!this._selection?.isOf(range)) {
      this._selection = new Selection(this._feed.store, range);
    }
    // The kernel may have iterations that the page does not have.
    this._feed.ask(range.from, this._last(range));
  }

  /** The selection, or null. */
  get selected(): ISelection | null {
    if (!this._selection) {
      return null;
    }
    const { first, last } = this._selection;
    const { answer, asking } = this._feed;
    const source = answer ? 'kernel' : asking ? 'asked' : 'page';
    return { first, last, source };
  }

  /** The mean of each rank over the selection. */
  get reading(): IReading | null {
    return this._selection ? ofSelection(this._selection) : null;
  }

  get summary(): ISummary {
    const { answer, status } = this._feed;
    return this._selection
      ? (answer?.summary ??
          this._selection.summary(status.summary, this._trans))
      : status.summary;
  }

  get stragglers(): IDetails['stragglers'] {
    return this._details?.stragglers ?? [];
  }

  /** The collectives, or why they are unknown. */
  get collectives(): readonly ICollective[] | IUnknown {
    return (
      this._details?.collectives ?? {
        unknown: this._feed.asking
          ? this._trans.__('Waiting for the kernel…')
          : this._trans.__(
              'Unknown for these iterations: the kernel that timed them does not answer.'
            )
      }
    );
  }

  /** The stages of pipelines; none without messages between ranks. */
  get stages(): readonly IStage[] | IUnknown {
    return this._details?.stages ?? NO_STAGES;
  }

  /** The iterations of the collectives, as text. */
  get scope(): string {
    const details = this._details;
    if (!details || details.collectives_since < 0) {
      return '';
    }
    const { collectives_since, last_iteration, names, collectives } = details;
    const shown = Array.isArray(collectives) ? collectives.length : 0;
    const [from, to] = [count(collectives_since), count(last_iteration)];
    return names > shown
      ? this._trans.__('%1 of %2, iterations %3 to %4', shown, count(names), from, to) // prettier-ignore
      : this._trans.__('Iterations %1 to %2', from, to);
  }

  private get _details(): IDetails | null {
    const { answer, details } = this._feed;
    if (!this._selection) {
      return details;
    }
    // The run's final details may be of exactly these iterations.
    const { first, last } = this._selection;
    const same =
      details.first_iteration === first && details.last_iteration === last;
    return answer ?? (same ? details : null);
  }

  private _last({ to }: IRange): number {
    return Math.min(to - 1, this._feed.store.last);
  }

  private _selection: Selection | null = null;
}
