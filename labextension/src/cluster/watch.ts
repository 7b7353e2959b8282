import { Kernel } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';

/** A watch that is not renewed ends after 12 s. */
const RENEW_MS = 4000;

/**
 * Reports to a kernel whether the VMs of its cluster are shown; they are only sampled
 * then.
 *
 * At most one message is pending: after a reload during a cell it cannot be sent
 * before the end of the cell. A kernel without a watch gets no end of it.
 */
export class Watch implements IDisposable {
  constructor(options: Watch.IOptions) {
    this._options = options;
  }

  get on(): boolean {
    return this._on;
  }

  set on(on: boolean) {
    if (on === this._on || this._isDisposed) {
      return;
    }
    this._on = on;
    clearInterval(this._timer);
    if (on) {
      this._timer = setInterval(() => this._renew(), RENEW_MS);
    }
    this.send();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearInterval(this._timer);
  }

  /** Forget the watch of a kernel that has ended. */
  forget(): void {
    this._isWatched = this._isSending = false;
  }

  /** Send the current state if it differs from what the kernel has. */
  send(): void {
    const { canSend } = this._options;
    if (
      !canSend() ||
      this._isSending ||
      (!this._isWanted() && !this._isWatched)
    ) {
      return;
    }
    this._isSending = true;
    void this._options
      .ready()
      .then(comm => {
        this._isSending = false;
        this._isWatched = this._isWanted();
        comm.send({ type: 'watch', on: this._isWatched });
      })
      .catch(error => {
        this._isSending = false;
        console.debug('gradient-workbench: cannot watch', error);
      });
  }

  private _isWanted(): boolean {
    return this._on && this._options.hasRanks();
  }

  private _renew(): void {
    if (this._options.mustRenew()) {
      this.send();
    }
  }

  private _options: Watch.IOptions;
  private _on = false;
  /** Whether the kernel was last sent a watch. */
  private _isWatched = false;
  private _isSending = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setInterval> | undefined;
}

export namespace Watch {
  export interface IOptions {
    /** Whether the kernel is known to have the extension. */
    canSend: () => boolean;
    /** Whether there are ranks, and therefore VMs, or will be soon. */
    hasRanks: () => boolean;
    /** Whether there are VMs that only the kernel samples. */
    mustRenew: () => boolean;
    /** The comm, once messages on it are answered during a cell too. */
    ready: () => Promise<Kernel.IComm>;
  }
}
