/**
 * From messages to a store: sequence gaps, new runs, the run's state.
 */

import { ENGLISH, ITranslate } from '../common/translate';
import { IUnknown } from '../schema/known';
import { IVerdict } from './causes';
import { EarlierRuns } from './earlier';
import {
  IAnswer,
  IDetails,
  ISnapshot,
  IStatus,
  ISummary,
  IUpdate,
  readMessage,
  readSnapshot,
  Request
} from './protocol';
import { TimingStore } from './store';

function noSummary(trans: ITranslate): ISummary {
  const none = { unknown: trans.__('no iteration has arrived yet') };
  return {
    iteration: none,
    iterations_per_s: none,
    iteration_us: none,
    exposed_us: none,
    exposed_share: none,
    waiting_us: none,
    queued_us: none,
    transfer_us: none,
    busbw_gbps: none,
    nominal_gbps: none,
    calibrated_gbps: none,
    calibrated_error: none,
    slowest_rank: none,
    slowest_excess_us: none,
    dropped: none
  };
}

function noDetails(trans: ITranslate): IDetails {
  const summary = noSummary(trans);
  return {
    first_iteration: -1,
    last_iteration: -1,
    summary,
    collectives: summary.iteration as IUnknown,
    names: 0,
    collectives_since: -1,
    stragglers: []
  };
}

/** The status before the first message, without its summary. */
const NO_RUN = {
  run: -1,
  seq: -1,
  state: 'waiting',
  message: '',
  ranks: []
} as const satisfies Omit<IStatus, 'summary'>;

/** Interval of requests for older rows; Jupyter's server drops messages if it is shorter. */
const OLDER_EVERY_MS = 1000;

/** After this time, a kernel is considered not to answer. */
const PATIENCE_MS = 6000;

/**
 * The data of a view. Both entry points write to one; the drawing reads from it and
 * listens to `changed`.
 */
export class TimingFeed {
  constructor(private _trans: ITranslate = ENGLISH) {
    this._details = noDetails(_trans);
    this._status = { ...NO_RUN, summary: noSummary(_trans) };
  }

  readonly store = new TimingStore();

  /** The stored run with which this one is compared. */
  readonly earlier = new EarlierRuns();

  /** The last status received. */
  get status(): IStatus {
    return this._status;
  }

  /** The kernel's last details of the newest iterations. */
  get details(): IDetails {
    return this._details;
  }

  /** The kernel's answer for the last requested selection; null before it. */
  get answer(): IDetails | null {
    return this._answer;
  }

  /** Whether a kernel receives requests, and may still answer. */
  get asking(): boolean {
    return this._asked !== null && Date.now() - this._askedAt < PATIENCE_MS;
  }

  /** Set how requests are sent to the kernel; null if they cannot be sent. */
  connect(send: ((request: Request) => void) | null): void {
    this._send = send;
    this.earlier.connect(send);
    if (send === null && this._asked) {
      this._asked = null;
      this._changed();
    }
  }

  /** Request the cost of a selection, including both ends; the answer is a change. */
  ask(first: number, last: number): void {
    const same = this._asked?.first === first && this._asked.last === last;
    if (same || this._send === null) {
      return;
    }
    this._answer = null;
    this._asked = { type: 'details', first, last };
    this._askedAt = Date.now();
    this._send(this._asked);
    // Without an answer, the view must show that.
    setTimeout(() => this._changed(), PATIENCE_MS);
  }

  /** What slows down the newest iterations, or why that is unknown; null without an answer. */
  get explanation(): IVerdict | IUnknown | null {
    return this._explanation;
  }

  /** Whether the kernel was asked for an explanation, does not answer yet, or cannot be asked. */
  get explaining(): 'asked' | 'late' | 'offline' {
    if (this._send === null) {
      return 'offline';
    }
    return Date.now() - this._explainedAt < PATIENCE_MS ? 'asked' : 'late';
  }

  /** Request an explanation of the newest iterations; the answer is a change. */
  explain(): void {
    this._explanation = null;
    this._explainedAt = Date.now();
    this._send?.({ type: 'explain' });
    setTimeout(() => this._changed(), PATIENCE_MS);
  }

  /** Whether the kernel was asked for a profile, or does not answer yet; null once it has. */
  get profiling(): 'asked' | 'late' | null {
    if (this._profiledAt === null) {
      return null;
    }
    return Date.now() - this._profiledAt < PATIENCE_MS ? 'asked' : 'late';
  }

  /** Why the latest request for a profile was refused, or an empty text. */
  get refusal(): string {
    return this._refusal;
  }

  /** Profile the ranks for some seconds; the status describes the profile. */
  profile(seconds: number): void {
    if (this._send === null) {
      return;
    }
    this._refusal = '';
    this._profiledAt = Date.now();
    this._send({ type: 'profile', seconds });
    setTimeout(() => this._changed(), PATIENCE_MS);
    this._changed();
  }

  /** Cancel the request. */
  forget(): void {
    this._asked = null;
    this._answer = null;
  }

  /**
   * Request rows before the oldest stored one, until there are enough: a reloaded
   * page starts with the newest only.
   */
  fill(iterations: number): void {
    const { first, length, capacity } = this.store;
    const enough = first === 0 || length >= Math.min(iterations, capacity);
    const soon = Date.now() - this._filledAt < OLDER_EVERY_MS;
    if (enough || soon || this._send === null || first === this._asksBefore) {
      return;
    }
    this._filledAt = Date.now();
    this._asksBefore = first;
    this._send({ type: 'rows', before: first });
  }

  /** Whether messages were missed and no window has filled the gap yet. */
  get gap(): boolean {
    return this._gap;
  }

  /** Call `listener` after each change; return an unsubscriber. */
  onChange(listener: () => void): () => void {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  }

  /**
   * Load a snapshot. It is ignored unless it is newer than the messages received, so
   * that redrawing a saved output never goes back in time.
   */
  loadSnapshot(payload: unknown): ISnapshot {
    const snapshot = readSnapshot(payload, this._trans);
    if (snapshot.seq > this._status.seq || snapshot.run > this._status.run) {
      this._takeStatus(snapshot);
      this.store.add(snapshot.window);
      this._details = snapshot.details;
      this._gap = false;
      this._changed();
    }
    return snapshot;
  }

  /**
   * Process one message.
   *
   * @returns the bundle to save, if the message contains one.
   */
  handleMessage(
    content: unknown,
    buffers: readonly (ArrayBuffer | ArrayBufferView)[]
  ): Record<string, unknown> | null {
    const message = readMessage(content, buffers, this._trans);
    if (message === null) {
      return null;
    }
    if (message.type === 'saved') {
      return message.data;
    }
    if (message.type === 'answer') {
      this._take(message);
    } else {
      this._update(message);
    }
    return null;
  }

  private _take(answer: IAnswer): void {
    const { run, asked, details, window, explanation, refusal } = answer;
    this.earlier.take(answer);
    if (run !== this._status.run) {
      return;
    }
    if (asked.type === 'profile') {
      this._profiledAt = null;
      this._refusal = refusal;
    }
    this._explanation = explanation ?? this._explanation;
    if (window) {
      this.store.add(window);
      // Once more, a little later; an empty answer means that there are no older rows.
      if (window.rows > 0) {
        setTimeout(() => this._changed(), OLDER_EVERY_MS);
      }
    }
    const own = this._asked;
    if (asked.type === 'details' && own && details) {
      // The request may be that of another page on the same kernel.
      if (asked.first === own.first && asked.last === own.last) {
        this._answer = details;
      }
    }
    this._changed();
  }

  private _update(update: IUpdate): void {
    const missed = update.seq !== this._status.seq + 1;
    this._takeStatus(update);
    if (update.type === 'window') {
      this._gap = false;
    } else if (missed) {
      this._gap = true;
    }
    if (update.window && !this._gap) {
      this.store.add(update.window);
    }
    this._details = update.details ?? this._details;
    this._changed();
  }

  private _takeStatus(status: IStatus): void {
    if (status.run !== this._status.run) {
      this.store.clear();
      this.forget();
      this._explanation = null;
      this._profiledAt = null;
      this._refusal = '';
      this._details = noDetails(this._trans);
      this._asksBefore = -1;
    }
    this.store.setRanks(status.ranks);
    this._status = status;
  }

  private _changed(): void {
    this._listeners.forEach(listener => listener());
  }

  private _gap = false;
  private _details: IDetails;
  private _answer: IDetails | null = null;
  private _explanation: IVerdict | IUnknown | null = null;
  private _explainedAt = 0;
  private _profiledAt: number | null = null;
  private _refusal = '';
  private _asked: { type: 'details'; first: number; last: number } | null =
    null;
  private _askedAt = 0;
  private _filledAt = 0;
  private _asksBefore = -1;
  private _send: ((request: Request) => void) | null = null;
  private _listeners = new Set<() => void>();
  private _status: IStatus;
}
