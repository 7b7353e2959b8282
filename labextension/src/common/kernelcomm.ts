import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';

import { ENGLISH, ITranslate } from './translate';

/**
 * A comm that the kernel creates under a fixed id and to which the page connects. A page
 * reloaded during a cell receives messages immediately, and a kernel without the
 * extension gets none. It connects again after a restart of the kernel.
 */
export class KernelComm<Request extends object> implements IDisposable {
  /** Throws if another connection of this page has the kernel's comms. */
  constructor(options: KernelComm.IOptions) {
    this._options = options;
    this._join();
    options.kernel.statusChanged.connect(this._onStatus, this);
  }

  /** The comm of the running kernel; `null` while it restarts. */
  get current(): Kernel.IComm | null {
    return this._comm;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this._options.kernel.statusChanged.disconnect(this._onStatus, this);
    this._drop();
  }

  /** Send a request. A kernel with subshells answers during a cell. */
  async send(request: Request): Promise<void> {
    const comm = await this.ready();
    comm.send(request as unknown as JSONObject);
  }

  /** The comm, once messages on it are answered during a cell too. */
  async ready(): Promise<Kernel.IComm> {
    const { kernel, trans = ENGLISH } = this._options;
    await kernel.info; // `supportsSubshells` is unknown before
    const comm = this._comm as Private.ISubshellComm | null;
    if (!comm || comm.isDisposed) {
      throw new Error(
        trans.__('The kernel was restarted in the meantime. Try again.')
      );
    }
    if (kernel.supportsSubshells) {
      await comm.subshellStarted;
    }
    return comm;
  }

  private _join(): void {
    const { id, kernel, onJoin, onMessage, target } = this._options;
    const comm = kernel.createComm(target, id);
    comm.onMsg = onMessage;
    comm.onClose = () => this._leave();
    this._comm = comm;
    onJoin?.(comm);
  }

  private _onStatus(_: Kernel.IKernelConnection, status: Kernel.Status): void {
    if (Private.ENDED.includes(status)) {
      this._leave();
    } else if (!this._comm && (status === 'idle' || status === 'busy')) {
      this._join();
    }
  }

  /** Disconnect when the kernel has ended, since JupyterLab does not report closed comms. */
  private _leave(): void {
    this._drop();
    this._options.onLeave?.();
  }

  private _drop(): void {
    const comm = this._comm;
    this._comm = null;
    // JupyterLab disposes the comms of a kernel that ends; a second time would miscount its subshells.
    if (comm && !comm.isDisposed && !this._options.kernel.isDisposed) {
      comm.dispose();
    }
  }

  private _options: KernelComm.IOptions;
  private _comm: Kernel.IComm | null = null;
  private _isDisposed = false;
}

export namespace KernelComm {
  export interface IOptions {
    /** A connection that handles comms. */
    kernel: Kernel.IKernelConnection;
    target: string;
    id: string;
    onMessage: (message: KernelMessage.ICommMsgMsg) => void;
    onJoin?: (comm: Kernel.IComm) => void;
    onLeave?: () => void;
    trans?: ITranslate;
  }
}

namespace Private {
  /** A comm as created by JupyterLab; its interface lacks the subshell. */
  export interface ISubshellComm extends Kernel.IComm {
    readonly subshellStarted: Promise<void>;
  }

  export const ENDED: Kernel.Status[] = [
    'restarting',
    'autorestarting',
    'dead',
    'terminating'
  ];
}

/** Whether a status means that the kernel's process has ended, or is about to. */
export function hasEnded(status: Kernel.Status): boolean {
  return Private.ENDED.includes(status);
}
