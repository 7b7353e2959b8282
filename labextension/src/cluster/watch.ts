import { Kernel } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';

/** A watch that is not renewed ends after 12 s. */
const RENEW_MS = 4000;

/**
 * Tells a kernel whether somebody looks at the VMs of its cluster: only then are
 * they sampled.
 *
 * One message waits at the most: after a reload in mid-cell it cannot leave before
 * the cell's end. A kernel that never heard of a watch is not told of its end.
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
    this.tell();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearInterval(this._timer);
  }

  /** The kernel is gone, and with it what it was told. */
  forget(): void {
    this._told = this._telling = false;
  }

  /** Tell the kernel, where there is something to be told. */
  tell(): void {
    const { canTell } = this._options;
    if (!canTell() || this._telling || (!this._isWanted() && !this._told)) {
      return;
    }
    this._telling = true;
    void this._options
      .ready()
      .then(comm => {
        this._telling = false;
        this._told = this._isWanted();
        comm.send({ type: 'watch', on: this._told });
      })
      .catch(error => {
        this._telling = false;
        console.debug('gradient-workbench: nobody to watch', error);
      });
  }

  private _isWanted(): boolean {
    return this._on && this._options.hasRanks();
  }

  private _renew(): void {
    if (this._options.mustRenew()) {
      this.tell();
    }
  }

  private _options: Watch.IOptions;
  private _on = false;
  /** Whether the kernel was last told of a watch. */
  private _told = false;
  private _telling = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setInterval> | undefined;
}

export namespace Watch {
  export interface IOptions {
    /** Whether the kernel is known to have the extension. */
    canTell: () => boolean;
    /** Whether there are ranks, and so VMs, or will be soon. */
    hasRanks: () => boolean;
    /** Whether there are VMs that only the kernel samples. */
    mustRenew: () => boolean;
    /** The comm, once a message on it is answered in mid-cell too. */
    ready: () => Promise<Kernel.IComm>;
  }
}
