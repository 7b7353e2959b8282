import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { ENGLISH, ITranslate } from '../common/translate';
import { ISample, readServerSample } from '../schema/sample';

/** Delays before the next attempt, in milliseconds; the last one is repeated. */
const WAITS_MS = [1000, 2000, 4000, 8000, 16000, 30000];

/** After this time without a message, an open connection is considered dead. */
const SILENCE_MS = 5000;

/**
 * The WebSocket of live samples: reconnects after failures, at growing intervals.
 *
 * Nothing runs before `start` and after `stop`; both may be called repeatedly.
 */
export class LiveFeed implements IDisposable {
  constructor(options: LiveFeed.IOptions) {
    this._connect = options.connect;
    this._trans = options.trans ?? ENGLISH;
  }

  get state(): LiveFeed.State {
    return this._state;
  }

  get stateChanged(): ISignal<this, LiveFeed.State> {
    return this._stateChanged;
  }

  get received(): ISignal<this, ISample> {
    return this._received;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  start(): void {
    if (this._isDisposed || this._state.name !== 'closed') {
      return;
    }
    this._failures = 0;
    this._open();
  }

  stop(): void {
    this._drop();
    this._setState({ name: 'closed' });
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this.stop();
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private _open(): void {
    this._setState({ name: 'connecting' });
    const socket = this._connect();
    this._socket = socket;
    socket.onmessage = event => this._onMessage(event.data);
    socket.onclose = () =>
      this._retry(this._trans.__('the connection was closed'));
    this._listenFor(SILENCE_MS * 2);
  }

  private _onMessage(data: unknown): void {
    let sample: ISample;
    try {
      const raw: unknown = JSON.parse(String(data));
      sample = readServerSample(raw, 'sample', this._trans);
    } catch (error) {
      const { message } = error as Error;
      this._retry(this._trans.__('a message cannot be read (%1)', message));
      return;
    }
    this._failures = 0;
    this._listenFor(SILENCE_MS);
    this._setState({ name: 'live' });
    this._received.emit(sample);
  }

  private _listenFor(ms: number): void {
    clearTimeout(this._timer);
    const reason = this._trans.__(
      'the server has sent nothing for %1 s',
      ms / 1000
    );
    this._timer = setTimeout(() => this._retry(reason), ms);
  }

  private _retry(reason: string): void {
    this._drop();
    const wait = WAITS_MS[Math.min(this._failures, WAITS_MS.length - 1)];
    this._failures += 1;
    this._setState({ name: 'waiting', reason });
    this._timer = setTimeout(() => this._open(), wait);
  }

  private _drop(): void {
    clearTimeout(this._timer);
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private _setState(state: LiveFeed.State): void {
    if (state.name === this._state.name) {
      return;
    }
    this._state = state;
    this._stateChanged.emit(state);
  }

  private _connect: () => LiveFeed.ISocket;
  private _trans: ITranslate;
  private _socket: LiveFeed.ISocket | null = null;
  private _state: LiveFeed.State = { name: 'closed' };
  private _failures = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _isDisposed = false;
  private _stateChanged = new Signal<this, LiveFeed.State>(this);
  private _received = new Signal<this, ISample>(this);
}

export namespace LiveFeed {
  /** The interface of a `WebSocket` that is used. */
  export interface ISocket {
    onmessage: ((event: MessageEvent) => void) | null;
    onclose: ((event: CloseEvent) => void) | null;
    close(): void;
  }

  export type State =
    | { readonly name: 'closed' }
    | { readonly name: 'connecting' }
    | { readonly name: 'live' }
    /** Broken; the next attempt is scheduled. */
    | { readonly name: 'waiting'; readonly reason: string };

  export interface IOptions {
    connect: () => ISocket;
    trans?: ITranslate;
  }
}
