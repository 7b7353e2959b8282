/**
 * What a view answers for: the newest iterations, or a stretch that was marked.
 */

import { IUnknown } from '../schema/known';
import { TimingFeed } from './feed';
import { count } from './format';
import { IMarked } from './notice';
import { ICollective, IDetails, ISummary } from './protocol';
import { IRange } from './range';
import { IReading, ofStretch } from './reading';
import { Stretch } from './stretch';
import { ITranslate } from './text';

export class Focus {
  constructor(
    private _feed: TimingFeed,
    private _trans: ITranslate
  ) {}

  /** Answer for a stretch from now on, or (null) for the newest iterations. */
  set(range: IRange | null): void {
    if (range === null) {
      if (this._stretch) {
        this._feed.forget();
      }
      this._stretch = null;
      return;
    }
    if (!this._stretch?.isOf(range)) {
      this._stretch = new Stretch(this._feed.store, range);
    }
    // Iterations that the page no longer holds, or not yet, the kernel may.
    this._feed.ask(range.from, this._last(range));
  }

  /** The stretch that is marked, null where none is. */
  get marked(): IMarked | null {
    if (!this._stretch) {
      return null;
    }
    const { first, last } = this._stretch;
    const { answer, asking } = this._feed;
    const source = answer ? 'kernel' : asking ? 'asked' : 'page';
    return { first, last, source };
  }

  /** What each rank did in the stretch, on average. */
  get reading(): IReading | null {
    return this._stretch ? ofStretch(this._stretch) : null;
  }

  get summary(): ISummary {
    const { answer, status } = this._feed;
    return this._stretch
      ? (answer?.summary ?? this._stretch.summary(status.summary, this._trans))
      : status.summary;
  }

  get stragglers(): IDetails['stragglers'] {
    return this._details?.stragglers ?? [];
  }

  /** The collectives, or why they are not known. */
  get collectives(): readonly ICollective[] | IUnknown {
    return (
      this._details?.collectives ?? {
        unknown: this._feed.asking
          ? this._trans.__('Asking the kernel for these iterations.')
          : this._trans.__(
              'Not known for these iterations: the kernel that timed them does not answer.'
            )
      }
    );
  }

  /** What the collectives are of, in words. */
  get scope(): string {
    const details = this._details;
    if (!details || details.collectives_since < 0) {
      return '';
    }
    const { collectives_since, last_iteration, names, collectives } = details;
    const shown = Array.isArray(collectives) ? collectives.length : 0;
    const of = this._trans.__(
      'iterations %1 to %2',
      count(collectives_since),
      count(last_iteration)
    );
    return names > shown
      ? this._trans.__('%1 of %2, %3', shown, count(names), of)
      : of;
  }

  private get _details(): IDetails | null {
    const { answer, details } = this._feed;
    if (!this._stretch) {
      return details;
    }
    // The run's last word may be of just these iterations.
    const { first, last } = this._stretch;
    const same =
      details.first_iteration === first && details.last_iteration === last;
    return answer ?? (same ? details : null);
  }

  private _last({ to }: IRange): number {
    return Math.min(to - 1, this._feed.store.last);
  }

  private _stretch: Stretch | null = null;
}
