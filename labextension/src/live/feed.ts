/**
 * From messages to a store: sequence gaps, new runs, the run's state.
 */

import {
  ISnapshot,
  IStatus,
  ISummary,
  IUpdate,
  readMessage,
  readSnapshot
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
  slowest_rank: NOTHING_YET,
  slowest_excess_us: NOTHING_YET,
  dropped: NOTHING_YET
};

/**
 * What a view knows. Both doors push into one; the drawing reads from it and
 * listens to `changed`.
 */
export class TimingFeed {
  readonly store = new TimingStore();

  /** The last status that came. */
  get status(): IStatus {
    return this._status;
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
    this._update(message);
    return null;
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
    this._changed();
  }

  private _takeStatus(status: IStatus): void {
    if (status.run !== this._status.run) {
      this.store.clear();
    }
    this.store.setRanks(status.ranks);
    this._status = status;
  }

  private _changed(): void {
    this._listeners.forEach(listener => listener());
  }

  private _gap = false;
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
