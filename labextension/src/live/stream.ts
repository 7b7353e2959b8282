/**
 * Listening to a kernel's stream of timings, and asking it: one comm per kernel
 * and view, however many outputs show that view.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';

import { KernelComm } from '../common/kernelcomm';
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

  /** One comm, which all outputs of a view share. */
  export class Stream {
    constructor(
      kernel: Kernel.IKernelConnection,
      id: string,
      private _forget: () => void
    ) {
      this._comm = new KernelComm<Request>({
        kernel,
        target: COMM_TARGET,
        id,
        onMessage: message => this._onMessage(message)
      });
    }

    readonly listeners = new Set<Listener>();

    dispose(): void {
      this._forget();
      this._comm.dispose();
    }

    async send(request: Request): Promise<void> {
      try {
        await this._comm.send(request);
      } catch {
        // The kernel was restarted or is gone: the view says that it does not answer.
      }
    }

    /** The envelope is that of ipywidgets' custom messages. */
    private _onMessage(message: KernelMessage.ICommMsgMsg): void {
      const { content } = message.content.data as { content?: unknown };
      this.listeners.forEach(listener =>
        listener(content, message.buffers ?? [])
      );
    }

    private _comm: KernelComm<Request>;
  }
}
