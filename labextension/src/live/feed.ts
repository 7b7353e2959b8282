/**
 * From messages to a store: sequence gaps, new runs, the run's state.
 */

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

const NOTHING_YET = { unknown: 'no iteration has arrived yet' };

const NO_SUMMARY: ISummary = {
  iteration: NOTHING_YET,
  iterations_per_s: NOTHING_YET,
  iteration_us: NOTHING_YET,
  exposed_us: NOTHING_YET,
  exposed_share: NOTHING_YET,
  busbw_gbps: NOTHING_YET,
  nominal_gbps: NOTHING_YET,
  calibrated_gbps: NOTHING_YET,
  calibrated_error: NOTHING_YET,
  slowest_rank: NOTHING_YET,
  slowest_excess_us: NOTHING_YET,
  dropped: NOTHING_YET
};

const NO_DETAILS: IDetails = {
  first_iteration: -1,
  last_iteration: -1,
  summary: NO_SUMMARY,
  collectives: NOTHING_YET,
  names: 0,
  collectives_since: -1,
  stragglers: []
};

/** Older rows are requested this often: more, and Jupyter's server drops messages. */
const OLDER_EVERY_MS = 1000;

/** A kernel that has not answered by then is not going to. */
const PATIENCE_MS = 6000;

/**
 * What a view knows. Both entry points push into one; the drawing reads from it and
 * listens to `changed`.
 */
export class TimingFeed {
  readonly store = new TimingStore();

  /** The last status that came. */
  get status(): IStatus {
    return this._status;
  }

  /** What the kernel last said of the newest iterations. */
  get details(): IDetails {
    return this._details;
  }

  /** What the kernel said of the selection that was last requested; null before. */
  get answer(): IDetails | null {
    return this._answer;
  }

  /** Whether a kernel hears what is asked, and may still answer. */
  get asking(): boolean {
    return this._asked !== null && Date.now() - this._askedAt < PATIENCE_MS;
  }

  /** Say how requests reach the kernel; null where they do not any more. */
  connect(send: ((request: Request) => void) | null): void {
    this._send = send;
    if (send === null && this._asked) {
      this._asked = null;
      this._changed();
    }
  }

  /** Ask what a selection cost, both ends included; the answer is a change. */
  ask(first: number, last: number): void {
    const same = this._asked?.first === first && this._asked.last === last;
    if (same || this._send === null) {
      return;
    }
    this._answer = null;
    this._asked = { type: 'details', first, last };
    this._askedAt = Date.now();
    this._send(this._asked);
    // Without an answer the view must say so.
    setTimeout(() => this._changed(), PATIENCE_MS);
  }

  /** Ask no more. */
  forget(): void {
    this._asked = null;
    this._answer = null;
  }

  /**
   * Ask for rows before the oldest held, until so many iterations are: a page
   * that was reloaded begins with the newest only.
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

  /** Call `listener` after each change; returns how to stop that. */
  onChange(listener: () => void): () => void {
    this._listeners.add(listener);
    return () => {
      this._listeners.delete(listener);
    };
  }

  /**
   * Take a snapshot over. One that is not newer than what came by messages is
   * left alone, so that redrawing a saved output never turns the clock back.
   */
  loadSnapshot(payload: unknown): ISnapshot {
    const snapshot = readSnapshot(payload);
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
   * Take one message over.
   *
   * @returns the bundle to save, where the message carried one.
   */
  handleMessage(
    content: unknown,
    buffers: readonly (ArrayBuffer | ArrayBufferView)[]
  ): Record<string, unknown> | null {
    const message = readMessage(content, buffers);
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

  private _take({ run, asked, details, window }: IAnswer): void {
    if (run !== this._status.run) {
      return;
    }
    if (window) {
      this.store.add(window);
      // Once more, a little later; none that came were the last there are.
      if (window.rows > 0) {
        setTimeout(() => this._changed(), OLDER_EVERY_MS);
      }
    }
    const own = this._asked;
    if (asked.type === 'details' && own && details) {
      // Another page on the same kernel may have asked.
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
      this._details = NO_DETAILS;
      this._asksBefore = -1;
    }
    this.store.setRanks(status.ranks);
    this._status = status;
  }

  private _changed(): void {
    this._listeners.forEach(listener => listener());
  }

  private _gap = false;
  private _details = NO_DETAILS;
  private _answer: IDetails | null = null;
  private _asked: { type: 'details'; first: number; last: number } | null =
    null;
  private _askedAt = 0;
  private _filledAt = 0;
  private _asksBefore = -1;
  private _send: ((request: Request) => void) | null = null;
  private _listeners = new Set<() => void>();
  private _status: IStatus = {
    run: -1,
    seq: -1,
    state: 'waiting',
    message: '',
    ranks: [],
    summary: NO_SUMMARY
  };
}
