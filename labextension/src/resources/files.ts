import { ISignal, Signal } from '@lumino/signaling';

import { ClusterModel } from '../cluster/model';
import { ResourcesClient } from './client';
import { Machine } from './machine';

/** Most bytes that the server reads. */
export const MAX_BYTES = 4 * 2 ** 20;

const SESSION = '.gwsession';

/** Topologies and snapshots from files, shown after the machines. */
export class FileShelf {
  constructor(options: FileShelf.IOptions) {
    this._client = options.client;
    this._cluster = options.cluster;
  }

  /** In the order in which they were opened. */
  get machines(): readonly Machine[] {
    return this._machines;
  }

  /** The last file that could not be read, and why; `null` if there is none. */
  get failure(): FileShelf.IFailure | null {
    return this._failure;
  }

  /** Emits when a file is opened or closed, or cannot be read. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emits the machine of a file that was just opened, to show it. */
  get opened(): ISignal<this, Machine> {
    return this._opened;
  }

  /** Let the server read a file, and keep its content. */
  async open(file: File): Promise<void> {
    try {
      if (file.name.endsWith(SESSION)) {
        throw await this._session(file.name);
      }
      if (file.size > MAX_BYTES) {
        throw new FileShelf.TooLarge();
      }
      const text = await file.text();
      const { findings, name, snapshot } = await this._client.read(
        file.name,
        text
      );
      const machine = new Machine({
        key: `file/${this._count++}`,
        kind: 'file',
        name
      });
      machine.setSnapshot(snapshot, findings);
      this._machines = [...this._machines, machine];
      this._failure = null;
      this._changed.emit();
      this._opened.emit(machine);
    } catch (error) {
      this._failure = { name: file.name, error: error as Error };
      this._changed.emit();
    }
  }

  close(machine: Machine): void {
    this._machines = this._machines.filter(one => one !== machine);
    this._changed.emit();
  }

  /** Dismiss the failure. */
  forgive(): void {
    this._failure = null;
    this._changed.emit();
  }

  /** Insert a cell that replays a session: only the kernel can read it, on its own machine. */
  private async _session(name: string): Promise<FileShelf.Session> {
    if (!this._cluster?.notebook || !this._cluster.insertCell) {
      return new FileShelf.Session(false);
    }
    const path = /^[\w.-]+$/.test(name) ? name : `"${name}"`;
    await this._cluster.insertCell(
      `%reload_ext workbench\n%timings replay ${path}`
    );
    return new FileShelf.Session(true);
  }

  private _client: FileShelf.IClient;
  private _cluster: FileShelf.IOptions['cluster'];
  private _machines: readonly Machine[] = [];
  private _failure: FileShelf.IFailure | null = null;
  private _count = 0;
  private _changed = new Signal<this, void>(this);
  private _opened = new Signal<this, Machine>(this);
}

export namespace FileShelf {
  export type IClient = Pick<ResourcesClient, 'read'>;

  export interface IFailure {
    readonly name: string;
    readonly error: Error;
  }

  /** The view has the text. */
  export class TooLarge extends Error {}

  /** It is replayed in a notebook; the view has the text. */
  export class Session extends Error {
    constructor(readonly hasCell: boolean) {
      super();
    }
  }

  export type INotebook = Partial<
    Pick<ClusterModel, 'notebook' | 'insertCell'>
  >;

  export interface IOptions {
    client: IClient;
    /** The active notebook, where a session is replayed. */
    cluster?: INotebook | null;
  }
}
