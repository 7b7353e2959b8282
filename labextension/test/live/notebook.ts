/* eslint-disable @typescript-eslint/no-explicit-any -- fakes are parts of what they stand for */
/**
 * A notebook of JupyterLab with its kernel, as far as the live view uses them.
 */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { ISession, TimingsRenderer } from '../../src/live/renderer';
import { ENGLISH } from '../../src/common/translate';
import { IBrowser } from './browser';
import { bundle } from './rows';

/** The base URL of the notebook's server. */
export const HUB = 'http://localhost/user/ada/';

/** A kernel as far as comms go: hands messages to the comm of their id. */
export class Kernel {
  readonly statusChanged = new Signal<this, string>(this);
  readonly comms = new Map<string, any>();
  isDisposed = false;
  status = 'busy';
  handleComms = true;
  supportsSubshells = true;
  readonly info = Promise.resolve({});
  /** What pages have asked for. */
  readonly asked: any[] = [];

  createComm(_: string, id: string): any {
    if (!this.handleComms || this.comms.has(id)) {
      throw new Error('Comms are disabled on this kernel connection');
    }
    const comm = {
      isDisposed: false,
      subshellStarted: Promise.resolve(),
      send: (request: unknown): void => void this.asked.push(request),
      onMsg: (_: unknown): void => undefined,
      dispose: (): void => {
        comm.isDisposed = true;
        this.comms.delete(id);
      }
    };
    this.comms.set(id, comm);
    return comm;
  }

  send(content: unknown, buffers: unknown[] = []): void {
    const data = { method: 'custom', content };
    this.comms.get('timings-abc')?.onMsg({ content: { data }, buffers });
  }

  /** As JupyterLab does: comms are disposed, and nobody is told. */
  restart(): void {
    [...this.comms.values()].forEach(comm => comm.dispose());
    this.statusChanged.emit('restarting');
    this.statusChanged.emit('idle');
  }
}

/** A notebook's session as far as its kernel goes. */
export class Session {
  constructor(kernel: Kernel) {
    this.session = { kernel };
    kernel.statusChanged.connect((_, status) =>
      this.statusChanged.emit(status)
    );
  }
  session: { kernel: Kernel } | null;
  readonly kernelChanged = new Signal<this, unknown>(this);
  readonly statusChanged = new Signal<this, string>(this);
}

/** Opens outputs of one notebook. */
export class NotebookPage {
  constructor(private _browser: IBrowser) {}

  readonly kernel = new Kernel();
  readonly session = new Session(this.kernel);
  /** What was written into outputs. */
  readonly saved: any[] = [];

  open(payload: Record<string, unknown>): TimingsRenderer {
    const output = new TimingsRenderer({
      serverSettings: ServerConnection.makeSettings({ baseUrl: HUB }),
      translate: ENGLISH,
      findSession: () => this.session as unknown as ISession
    });
    const model: IRenderMime.IMimeModel = {
      trusted: true,
      data: bundle(payload),
      metadata: {},
      setData: ({ data }) => this.saved.push(data)
    };
    void output.renderModel(model);
    Widget.attach(output, document.body);
    this._browser.frame();
    return output;
  }
}

export function text(node: HTMLElement, selector: string): string {
  return node.querySelector<HTMLElement>(selector)?.textContent ?? '';
}

/** Which iteration the view shows, in words. */
export function title(node: HTMLElement): string {
  return text(node, '.jp-gw-Live-single .jp-gw-Live-title');
}
