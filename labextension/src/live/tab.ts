import { ISessionContext } from '@jupyterlab/apputils';
import { MimeModel } from '@jupyterlab/rendermime';
import { ServerConnection } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { Panel, Widget } from '@lumino/widgets';

import { KernelLink } from '../cluster/link';
import { isUp } from '../cluster/states';
import { ITranslate } from '../common/translate';
import { MIME_TYPE } from './protocol';
import { TimingsRenderer } from './renderer';

/** The live view of a notebook's cluster in a tab of its own. */
export class LiveTab extends Panel {
  constructor(options: LiveTab.IOptions) {
    super();
    this._options = options;
    this.addClass('jp-gw-LiveTab');
    this._note.addClass('jp-gw-LiveTab-note');
    this._note.node.setAttribute('role', 'status');
    this.addWidget(this._note);
    options.session.kernelChanged.connect(this._update, this);
    options.session.connectionStatusChanged.connect(this._update, this);
    this._update();
  }

  /** The path of its notebook, which changes when that is renamed or moved. */
  get path(): string {
    return this._options.path;
  }

  set path(path: string) {
    this._options = { ...this._options, path };
    this._update();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    const { session } = this._options;
    session.kernelChanged.disconnect(this._update, this);
    session.connectionStatusChanged.disconnect(this._update, this);
    this._follow(null);
    super.dispose();
  }

  /** Ask the kernel for its view once it has a cluster, and again for the next cluster. */
  private _update(): void {
    const link = this._options.linkOf(this._options.session);
    this._follow(link);
    const cluster = link?.state.cluster ?? null;
    if (!link || !cluster || !isUp(cluster)) {
      // The view of the next cluster is another one, even if kernel and name are the same.
      this._key = '';
      this._showNote();
      return;
    }
    const key = `${link.kernel.id}/${cluster.name}`;
    if (key !== this._key) {
      this._key = key;
      void this._open(link);
    }
  }

  private _follow(link: KernelLink | null): void {
    if (link !== this._link) {
      this._link?.stateChanged.disconnect(this._update, this);
      this._link = link;
      link?.stateChanged.connect(this._update, this);
    }
  }

  private async _open(link: KernelLink): Promise<void> {
    const { translate } = this._options;
    const request = ++this._request;
    const isCurrent = (): boolean =>
      request === this._request && this._key !== '' && !this.isDisposed;
    this._showNote(
      translate.__(
        'Waiting for the kernel. After a reload during a cell, it answers when the cell has ended.'
      )
    );
    try {
      const snapshot = await link.openLive();
      if (isCurrent()) {
        await this._show(snapshot as JSONObject);
      }
    } catch (error) {
      if (isCurrent()) {
        this._key = '';
        this._showNote((error as Error).message);
      }
    }
  }

  private async _show(snapshot: JSONObject): Promise<void> {
    const { serverSettings, session, translate } = this._options;
    this._renderer?.dispose();
    this._renderer = new TimingsRenderer({
      serverSettings,
      translate,
      findSession: () => session
    });
    this._note.hide();
    this.addWidget(this._renderer);
    await this._renderer.renderModel(
      new MimeModel({ data: { [MIME_TYPE]: snapshot } })
    );
  }

  /** Say what is missing, unless the last state of a view is still shown. */
  private _showNote(text?: string): void {
    const { translate } = this._options;
    if (text === undefined && this._renderer) {
      this._note.hide();
      return;
    }
    this._note.node.textContent =
      text ??
      translate.__(
        'No cluster runs in %1. Start one in the panel, or with %cluster start.',
        this.path
      );
    this._note.show();
  }

  private _options: LiveTab.IOptions;
  private _note = new Widget();
  private _link: KernelLink | null = null;
  private _renderer: TimingsRenderer | null = null;
  private _key = '';
  /** How often a view was requested; the answer to an earlier request is ignored. */
  private _request = 0;
}

export namespace LiveTab {
  export interface IOptions {
    path: string;
    /** Of its notebook. */
    session: ISessionContext;
    linkOf: (session: ISessionContext) => KernelLink | null;
    serverSettings: ServerConnection.ISettings;
    translate: ITranslate;
  }
}
