/**
 * The live view as a renderer of a notebook's outputs.
 */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Kernel, ServerConnection } from '@jupyterlab/services';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Message } from '@lumino/messaging';
import { ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { hasEnded } from '../common/kernelcomm';
import { fileUrl } from '../common/fileurl';
import { TimingFeed } from './feed';
import { MIME_TYPE } from './protocol';
import { IStream, listen } from './stream';
import { ITranslate } from '../common/translate';
import { LiveView } from './view';

/** The interface of a notebook's session that is used here. */
export interface ISession {
  readonly session: { readonly kernel: Kernel.IKernelConnection | null } | null;
  readonly kernelChanged: ISignal<unknown, unknown>;
  readonly statusChanged: ISignal<unknown, Kernel.Status>;
}

export class TimingsRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(options: TimingsRenderer.IOptions) {
    super();
    this._options = options;
    this._feed = new TimingFeed(options.translate);
    this.addClass('jp-gw-Live-output');
  }

  /** Show the output's snapshot; live messages continue from it. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._model = model;
    const { viewId } = this._feed.loadSnapshot(model.data[MIME_TYPE]);
    if (viewId !== this._viewId) {
      this._viewId = viewId;
      this._disconnect();
    }
    if (this._view === null) {
      const { translate } = this._options;
      this._view = new LiveView({
        host: this.node,
        feed: this._feed,
        translate,
        fileUrl: file => fileUrl(this._options.serverSettings, file)
      });
    }
    this._connect();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._disconnect();
    this._session?.kernelChanged.disconnect(this._onKernelChanged, this);
    this._session?.statusChanged.disconnect(this._onStatus, this);
    this._view?.dispose();
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._connect();
  }

  /** Find the notebook's session once, and listen to its kernel. */
  private _connect(): void {
    if (!this._viewId || !this.isAttached) {
      return;
    }
    if (this._session === null) {
      this._session = this._options.findSession(this, this._viewId);
      this._session?.kernelChanged.connect(this._onKernelChanged, this);
      this._session?.statusChanged.connect(this._onStatus, this);
    }
    const kernel = this._session?.session?.kernel ?? null;
    if (kernel === null || this._stream !== null) {
      return;
    }
    try {
      const stream = listen(kernel, this._viewId, (content, buffers) =>
        this._onMessage(content, buffers)
      );
      this._stream = stream;
      this._feed.connect(request => stream.send(request));
    } catch {
      // JupyterLab assigns a kernel's comms to one notebook of a page only.
      this._view?.setNote(
        this._options.translate.__(
          'Live in the other notebook of this kernel; this is the last state.'
        )
      );
    }
  }

  private _disconnect(): void {
    this._stream?.stop();
    this._stream = null;
    this._feed.connect(null);
  }

  private _onMessage(
    content: unknown,
    buffers: readonly (ArrayBuffer | ArrayBufferView)[]
  ): void {
    this._view?.setNote('');
    const saved = this._feed.handleMessage(content, buffers);
    if (saved) {
      this._save(saved);
    }
  }

  /**
   * Write the output's last state into the notebook. The kernel updates its
   * display too, but a page that was reloaded since then does not have that
   * display.
   */
  private _save(data: Record<string, unknown>): void {
    const seq = (of: Record<string, unknown>): number =>
      (of[MIME_TYPE] as { seq?: number } | undefined)?.seq ?? -1;
    const model = this._model;
    if (model && seq(data) > seq(model.data)) {
      const json = data as ReadonlyPartialJSONObject;
      model.setData({ data: json, metadata: model.metadata });
    }
  }

  private _onKernelChanged(): void {
    this._disconnect();
    this._connect();
    this._showEnd();
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (hasEnded(status)) {
      this._showEnd();
    }
  }

  private _showEnd(): void {
    if (this._feed.status.state !== 'ended') {
      this._view?.setNote(
        this._options.translate.__(
          'The kernel that sent this has ended; this is the last state.'
        )
      );
    }
  }

  private _options: TimingsRenderer.IOptions;
  private _feed: TimingFeed;
  private _view: LiveView | null = null;
  private _viewId = '';
  private _model: IRenderMime.IMimeModel | null = null;
  private _session: ISession | null = null;
  private _stream: IStream | null = null;
}

export namespace TimingsRenderer {
  export interface IOptions {
    /** Of the server with the files of runs. */
    serverSettings: ServerConnection.ISettings;
    translate: ITranslate;
    /** The session of the notebook that contains an output. */
    findSession: (output: Widget, viewId: string) => ISession | null;
  }
}
