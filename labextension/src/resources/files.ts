import { ISignal, Signal } from '@lumino/signaling';

import { ResourcesClient } from './client';
import { Machine } from './machine';

/** More the server does not read, in bytes. */
export const MOST_BYTES = 4 * 2 ** 20;

/** Topologies and snapshots from files, which are shown after the machines. */
export class FileShelf {
  constructor(options: FileShelf.IOptions) {
    this._client = options.client;
  }

  /** In the order in which they were opened. */
  get machines(): readonly Machine[] {
    return this._machines;
  }

  /** The file that could not be read last, and why; `null` where none was. */
  get failure(): FileShelf.IFailure | null {
    return this._failure;
  }

  /** Emits where a file is opened or closed, or could not be read. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emits the machine of a file that was just opened: to be shown. */
  get opened(): ISignal<this, Machine> {
    return this._opened;
  }

  /** Have a file read, and keep what it says. */
  async open(file: File): Promise<void> {
    try {
      if (file.size > MOST_BYTES) {
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

  /** The failure was read. */
  forgive(): void {
    this._failure = null;
    this._changed.emit();
  }

  private _client: FileShelf.IClient;
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

  /** The view has the words. */
  export class TooLarge extends Error {}

  export interface IOptions {
    client: IClient;
  }
}
