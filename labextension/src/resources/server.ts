import { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';

import { ISample } from '../schema/sample';
import { ResourcesClient } from './client';
import { LiveFeed } from './livefeed';
import { Machine } from './machine';

/** Hardware and settings change rarely; counters have a separate feed. */
const SNAPSHOT_INTERVAL_MS = 60_000;

/**
 * The machine of the Jupyter server: REST requests, and samples from a WebSocket.
 *
 * Asleep (no request, no socket) until `awake` is set.
 */
export class ServerSource implements IDisposable {
  constructor(options: ServerSource.IOptions) {
    this._client = options.client;
    this._feed = options.feed;
    this._feed.received.connect(this._onSample, this);
    this._feed.stateChanged.connect(this._onState, this);
    this._poll = new Poll({
      auto: false,
      factory: () => this._fetch(),
      frequency: {
        interval: SNAPSHOT_INTERVAL_MS,
        backoff: true,
        max: 300_000
      },
      name: 'gradient-workbench:snapshot',
      standby: 'when-hidden'
    });
  }

  readonly machine = new Machine({ key: 'server', kind: 'server' });

  /** Why the last request failed; empty if it succeeded. */
  get error(): string {
    return this._error;
  }

  get feedState(): LiveFeed.State {
    return this._feed.state;
  }

  /** Emits when an answer arrives or fails, and when the feed connects or disconnects. */
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  get awake(): boolean {
    return this._awake;
  }

  set awake(awake: boolean) {
    if (awake === this._awake || this.isDisposed) {
      return;
    }
    this._awake = awake;
    if (awake) {
      this._feed.start();
      void this._poll.refresh();
    } else {
      this._feed.stop();
      void this._poll.stop();
    }
  }

  /** Send the requests again. */
  async refresh(): Promise<void> {
    await this._poll.refresh();
    await this._poll.tick;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._poll.dispose();
    this._feed.dispose();
    Signal.clearData(this);
  }

  private async _fetch(): Promise<void> {
    try {
      const [snapshot, findings] = await Promise.all([
        this._client.snapshot(),
        this._client.findings()
      ]);
      this.machine.setSnapshot(snapshot, findings);
      this._error = '';
    } catch (error) {
      this._error = (error as Error).message;
      throw error; // the poll counts failures and slows down
    } finally {
      this._stateChanged.emit();
    }
  }

  private _onSample(_: LiveFeed, sample: ISample): void {
    this.machine.take(sample);
  }

  private _onState(_: LiveFeed, state: LiveFeed.State): void {
    if (state.name === 'waiting') {
      this.machine.miss(state.reason);
    }
    this._stateChanged.emit();
  }

  private _client: ServerSource.IClient;
  private _feed: LiveFeed;
  private _poll: Poll;
  private _awake = false;
  private _error = '';
  private _stateChanged = new Signal<this, void>(this);
}

export namespace ServerSource {
  export type IClient = Pick<ResourcesClient, 'snapshot' | 'findings'>;

  export interface IOptions {
    client: IClient;
    feed: LiveFeed;
  }
}
