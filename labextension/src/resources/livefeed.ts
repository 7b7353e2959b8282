import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { ISample, readServerSample } from '../schema/sample';

/** Waits before the next try, in milliseconds; the last one stays. */
const WAITS_MS = [1000, 2000, 4000, 8000, 16000, 30000];

/** Without a message for so long, a connection that claims to be open is dead. */
const SILENCE_MS = 5000;

/**
 * The WebSocket of live samples: connects again where it breaks, at growing intervals.
 *
 * Nothing runs before `start` and after `stop`; both may be called again.
 */
export class LiveFeed implements IDisposable {
  constructor(options: LiveFeed.IOptions) {
    this._connect = options.connect;
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
    socket.onclose = () => this._retry('the connection was closed');
    this._listenFor(SILENCE_MS * 2);
  }

  private _onMessage(data: unknown): void {
    let sample: ISample;
    try {
      sample = readServerSample(JSON.parse(String(data)), 'sample');
    } catch (error) {
      this._retry(`a message cannot be read (${(error as Error).message})`);
      return;
    }
    this._failures = 0;
    this._listenFor(SILENCE_MS);
    this._setState({ name: 'live' });
    this._received.emit(sample);
  }

  private _listenFor(ms: number): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._retry('the server is silent'), ms);
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
  private _socket: LiveFeed.ISocket | null = null;
  private _state: LiveFeed.State = { name: 'closed' };
  private _failures = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _isDisposed = false;
  private _stateChanged = new Signal<this, LiveFeed.State>(this);
  private _received = new Signal<this, ISample>(this);
}

export namespace LiveFeed {
  /** The part of a `WebSocket` that is used. */
  export interface ISocket {
    onmessage: ((event: MessageEvent) => void) | null;
    onclose: ((event: CloseEvent) => void) | null;
    close(): void;
  }

  export type State =
    | { readonly name: 'closed' }
    | { readonly name: 'connecting' }
    | { readonly name: 'live' }
    /** Broken; the next try is scheduled. */
    | { readonly name: 'waiting'; readonly reason: string };

  export interface IOptions {
    connect: () => ISocket;
  }
}
