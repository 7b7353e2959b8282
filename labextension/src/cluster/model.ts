import { ISessionContext } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';
import { IStateDB } from '@jupyterlab/statedb';
import { VDomModel } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';

import { ITranslate } from '../common/translate';
import { LastUsed } from './lastused';
import { KernelLink } from './link';

/**
 * The cluster of the active notebook.
 *
 * Keeps one link for each kernel that was active while awake, so that switching
 * back to a notebook shows its cluster immediately.
 */
export class ClusterModel extends VDomModel {
  constructor(options: ClusterModel.IOptions) {
    super();
    this._tracker = options.tracker;
    this._trans = options.trans;
    this.lastUsed = new LastUsed(options.state ?? null);
    const { chooseFile } = options;
    this.chooseHostFile =
      chooseFile && (() => this._chooseHostFile(chooseFile));
    this._tracker?.currentChanged.connect(this._follow, this);
  }

  /** What the form that starts a cluster contains. */
  readonly lastUsed: LastUsed;

  /**
   * Let the user choose a host file: its path for the kernel, or `null`; absent if the
   * front end has no files.
   */
  readonly chooseHostFile?: () => Promise<string | null>;

  get situation(): ClusterModel.Situation {
    if (!this._session) {
      return 'no-notebook';
    }
    if (!this._session.session?.kernel) {
      return this._session.isReady ? 'no-kernel' : 'connecting';
    }
    return this._link ? 'linked' : 'elsewhere';
  }

  /** The name of the active notebook; empty if there is none. */
  get notebook(): string {
    return this._session?.name ?? '';
  }

  /** The link to its kernel; `null` unless the situation is `linked`. */
  get link(): KernelLink | null {
    return this._link;
  }

  get awake(): boolean {
    return this._awake;
  }

  set awake(awake: boolean) {
    if (awake !== this._awake && !this.isDisposed) {
      this._awake = awake;
      this._follow();
      this._watchVms();
    }
  }

  /** Insert a code cell below the active one of the notebook. */
  async insertCell(source: string): Promise<void> {
    const notebook = this._tracker?.currentWidget?.content;
    if (notebook) {
      const { NotebookActions } = await import('@jupyterlab/notebook');
      NotebookActions.insertBelow(notebook);
      NotebookActions.changeCellType(notebook, 'code');
      notebook.activeCell?.model.sharedModel.setSource(source);
    }
  }

  /** A link has changed, of the active notebook or another one. */
  get linkChanged(): ISignal<this, KernelLink> {
    return this._linkChanged;
  }

  /** Follow the active notebook while asleep too; its VMs are still not sampled then. */
  followAlways(): void {
    this._always = true;
    this._follow();
  }

  /** The link to a notebook's kernel; `null` without a kernel whose messages arrive here. */
  linkOf(session: ISessionContext): KernelLink | null {
    const kernel = session.session?.kernel;
    return kernel ? this._linkFor(kernel) : null;
  }

  /** Query its kernel again. */
  async refresh(): Promise<void> {
    await this._link?.refresh();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._tracker?.currentChanged.disconnect(this._follow, this);
    this._watch(null);
    this._links.forEach(link => link.dispose());
    this._links.clear();
    super.dispose();
  }

  /** Kernels run in the folder of their notebook, so the path is relative to it. */
  private async _chooseHostFile(
    chooseFile: () => Promise<string | null>
  ): Promise<string | null> {
    const path = await chooseFile();
    const folder = PathExt.dirname(this._session?.path ?? '');
    return path === null ? null : `./${PathExt.relative(folder, path)}`;
  }

  private _follow(): void {
    if (this._awake || this._always) {
      this._watch(this._tracker?.currentWidget?.sessionContext ?? null);
      this._update();
    }
  }

  private _watch(session: ISessionContext | null): void {
    if (session === this._session) {
      return;
    }
    this._session?.kernelChanged.disconnect(this._update, this);
    this._session?.connectionStatusChanged.disconnect(this._update, this);
    this._session = session;
    session?.kernelChanged.connect(this._update, this);
    session?.connectionStatusChanged.connect(this._update, this);
  }

  private _update(): void {
    const kernel = this._session?.session?.kernel ?? null;
    const link = kernel ? this._linkFor(kernel) : null;
    if (link !== this._link) {
      this._link?.stateChanged.disconnect(this._emit, this);
      this._watchVms(false);
      this._link = link;
      link?.stateChanged.connect(this._emit, this);
      this._watchVms();
    }
    this._emit();
  }

  /** Only the VMs of the active notebook are sampled, and only while visible. */
  private _watchVms(watched = this._awake): void {
    if (this._link && !this._link.isDisposed) {
      this._link.watched = watched;
    }
  }

  private _linkFor(kernel: Kernel.IKernelConnection): KernelLink | null {
    const existing = this._links.get(kernel.id);
    if (existing && !existing.isDisposed) {
      return existing;
    }
    const speaker = this._speakerFor(kernel);
    if (!speaker) {
      return null;
    }
    const link = new KernelLink({ kernel: speaker, trans: this._trans });
    link.stateChanged.connect(one => this._linkChanged.emit(one), this);
    this._links.set(kernel.id, link);
    return link;
  }

  /** Of the connections of several notebooks to one kernel, only one may have comms. */
  private _speakerFor(
    kernel: Kernel.IKernelConnection
  ): Kernel.IKernelConnection | null {
    const panels: NotebookPanel[] = [];
    this._tracker?.forEach(panel => panels.push(panel));
    return (
      [
        kernel,
        ...panels.map(panel => panel.sessionContext.session?.kernel ?? null)
      ].find(
        one => one?.id === kernel.id && one.handleComms && !one.isDisposed
      ) ?? null
    );
  }

  private _emit(): void {
    this.stateChanged.emit(undefined);
  }

  private _tracker: INotebookTracker | null;
  private _trans: ITranslate | undefined;
  private _session: ISessionContext | null = null;
  private _link: KernelLink | null = null;
  private _links = new Map<string, KernelLink>();
  private _linkChanged = new Signal<this, KernelLink>(this);
  private _awake = false;
  private _always = false;
}

export namespace ClusterModel {
  export type Situation =
    | 'no-notebook'
    | 'connecting'
    | 'no-kernel'
    /** The kernel's comms belong to a connection that is not a notebook, such as a console. */
    | 'elsewhere'
    | 'linked';

  export interface IOptions {
    /** `null` if the front end has no notebooks. */
    tracker: INotebookTracker | null;
    /** Where the last start is stored; `null` if the front end stores nothing. */
    state?: IStateDB | null;
    /** Let the user choose a file: its path on the server, or `null`. */
    chooseFile?: () => Promise<string | null>;
    trans?: ITranslate;
  }
}
