/**
 * Subscribing to a kernel's stream of timings, and sending requests: one comm per
 * kernel and view, for all outputs that show that view.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';

import { KernelComm } from '../common/kernelcomm';
import { COMM_TARGET, Request } from './protocol';

type Buffers = readonly (ArrayBuffer | ArrayBufferView)[];

export type Listener = (content: unknown, buffers: Buffers) => void;

/** A view's end of its stream. */
export interface IStream {
  /** Send a request; the kernel answers by a message, during a cell if it has subshells. */
  send(request: Request): void;
  stop(): void;
}

/**
 * Subscribe to the messages of a view. The kernel does not open this comm, so it
 * works during a cell, also after a reload.
 *
 * @throws if the kernel's comms belong to another notebook of this page.
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
  /** By kernel connection, then by comm id. */
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

  /** One comm, shared by all outputs of a view. */
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
        // The kernel was restarted or has ended: the view shows that it does not answer.
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
