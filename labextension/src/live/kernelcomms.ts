/**
 * Listening to a kernel's stream of timings, and asking it: one comm per kernel
 * and view, however many outputs show that view.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';

import { COMM_TARGET, Request } from './protocol';

type Buffers = readonly (ArrayBuffer | ArrayBufferView)[];

export type Listener = (content: unknown, buffers: Buffers) => void;

/** A view's end of its stream. */
export interface IStream {
  /** Ask the kernel; it answers by a message, in mid-cell where it has subshells. */
  send(request: Request): void;
  stop(): void;
}

/**
 * Hear what the kernel sends for a view. The kernel never opened this comm: it
 * works in mid-cell, and after a reload in mid-cell.
 *
 * @throws where the kernel's comms belong to another notebook of this page.
 */
export function listen(
  kernel: Kernel.IKernelConnection,
  viewId: string,
  listener: Listener
): IStream {
  const stream = Private.streamOf(kernel, viewId);
  stream.listeners.add(listener);
  return {
    send: request => void stream.send(request),
    stop: () => {
      stream.listeners.delete(listener);
      if (stream.listeners.size === 0) {
        stream.dispose();
      }
    }
  };
}

/** A comm as Lab makes it; its interface does not name the subshell. */
interface ISubshellComm extends Kernel.IComm {
  readonly subshellStarted: Promise<void>;
}

namespace Private {
  /** By kernel connection, then by the comm's id. */
  const streams = new WeakMap<Kernel.IKernelConnection, Map<string, Stream>>();

  export function streamOf(
    kernel: Kernel.IKernelConnection,
    viewId: string
  ): Stream {
    const id = `timings-${viewId}`;
    const known = streams.get(kernel) ?? new Map<string, Stream>();
    streams.set(kernel, known);
    let stream = known.get(id);
    if (!stream) {
      stream = new Stream(kernel, id, () => known.delete(id));
      known.set(id, stream);
    }
    return stream;
  }

  /** One comm, made again when a restart of the kernel has disposed it. */
  export class Stream {
    constructor(
      private _kernel: Kernel.IKernelConnection,
      private _id: string,
      private _forget: () => void
    ) {
      this._comm = this._open();
      _kernel.statusChanged.connect(this._onStatus, this);
    }

    readonly listeners = new Set<Listener>();

    dispose(): void {
      this._forget();
      this._kernel.statusChanged.disconnect(this._onStatus, this);
      this._comm.dispose();
    }

    async send(request: Request): Promise<void> {
      const comm = this._comm as ISubshellComm;
      try {
        await this._kernel.info; // tells whether the kernel has subshells
        if (this._kernel.supportsSubshells) {
          await comm.subshellStarted;
        }
        comm.send(request as unknown as JSONObject);
      } catch {
        // The kernel was restarted or is gone: the view says that nobody answers.
      }
    }

    private _open(): Kernel.IComm {
      const comm = this._kernel.createComm(COMM_TARGET, this._id);
      comm.onMsg = message => this._onMessage(message);
      return comm;
    }

    private _onStatus(): void {
      const { status, isDisposed } = this._kernel;
      if (this._comm.isDisposed && !isDisposed && status !== 'dead') {
        this._comm = this._open();
      }
    }

    /** The envelope is that of ipywidgets' custom messages. */
    private _onMessage(message: KernelMessage.ICommMsgMsg): void {
      const { content } = message.content.data as { content?: unknown };
      this.listeners.forEach(listener =>
        listener(content, message.buffers ?? [])
      );
    }

    private _comm: Kernel.IComm;
  }
}
