import { IStateDB } from '@jupyterlab/statedb';
import { VDomModel } from '@jupyterlab/ui-components';

import { ClusterModel } from '../cluster/model';
import { VmList } from '../cluster/vms';
import { IHop, IRank } from '../schema/cluster';
import { IFinding } from '../schema/findings';
import { isUnknown, Known } from '../schema/known';
import { ResourcesClient } from './client';
import { FileShelf } from './files';
import { LiveFeed } from './livefeed';
import { Machine } from './machine';
import { Openings } from './openings';
import { DEFAULTS, IPreferences } from './preferences';
import { ServerSource } from './server';

/**
 * The machines in the panel: that of the Jupyter server, the others of
 * the cluster of the active notebook, and those described by files.
 *
 * Emits when machines are added or removed; each machine emits its own changes.
 */
export class ResourcesModel extends VDomModel {
  constructor(options: ResourcesModel.IOptions) {
    super();
    this._cluster = options.cluster ?? null;
    this.server = new ServerSource(options);
    this.files = new FileShelf(options);
    this.openings = new Openings(options.state ?? null);
    this.server.stateChanged.connect(this._emit, this);
    this.files.changed.connect(this._emit, this);
    this.openings.changed.connect(this._emit, this);
    this._cluster?.stateChanged.connect(this._followCluster, this);
    this._followCluster();
  }

  readonly server: ServerSource;
  readonly files: FileShelf;
  readonly openings: Openings;

  /** The server's machine and the cluster's, in the cluster's order. */
  get machines(): readonly Machine[] {
    const { machine } = this.server;
    const entries = this._vms?.entries ?? [];
    const all = entries.map(entry => entry.machine ?? machine);
    return [...new Set(all.includes(machine) ? all : [machine, ...all])];
  }

  /** The doctor's findings across the machines of the cluster. */
  get findings(): readonly IFinding[] {
    return this._vms?.findings ?? [];
  }

  get preferences(): IPreferences {
    return this._preferences;
  }

  set preferences(preferences: IPreferences) {
    this._preferences = preferences;
    this._setLengths();
    this._emit();
  }

  get awake(): boolean {
    return this.server.awake;
  }

  set awake(awake: boolean) {
    this.server.awake = awake;
  }

  /** The cluster's ranks on a machine. */
  ranksOn(machine: Machine): readonly IRank[] {
    const cluster = this._cluster?.link?.state.cluster ?? null;
    if (
      cluster === null ||
      cluster.state === 'stopped' ||
      machine.kind === 'file'
    ) {
      return [];
    }
    const name = this._nameInCluster(machine);
    return cluster.ranks.filter(one => one.vm === name);
  }

  /** The weakest hop of the ranks' ring: `null` if another machine has it, or there is none. */
  weakestOn(machine: Machine): Known<IHop | null> {
    const weakest = this._vms?.weakest ?? null;
    if (weakest === null || this.ranksOn(machine).length === 0) {
      return null;
    }
    return isUnknown(weakest) || weakest.vm === this._nameInCluster(machine)
      ? weakest
      : null;
  }

  /** Whether a card is open: as set by the user, or else by the number of cards. */
  isOpen(machine: Machine): boolean {
    return (
      this.openings.get(machine.key) ??
      (machine.kind === 'file' ||
        this.machines.length <= this._preferences.openCards)
    );
  }

  /** Request everything again. */
  async refresh(): Promise<void> {
    await Promise.all([this.server.refresh(), this._cluster?.refresh()]);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._cluster?.stateChanged.disconnect(this._followCluster, this);
    this._vms?.changed.disconnect(this._onVms, this);
    this.server.dispose();
    super.dispose();
  }

  private _followCluster(): void {
    const vms = this._cluster?.link?.vms ?? null;
    if (vms !== this._vms) {
      this._vms?.changed.disconnect(this._onVms, this);
      this._vms = vms;
      this._vms?.changed.connect(this._onVms, this);
    }
    this._onVms();
  }

  private _onVms(): void {
    this._setLengths();
    this._emit();
  }

  private _setLengths(): void {
    for (const machine of this.machines) {
      if (machine.length !== this._preferences.historySeconds) {
        machine.length = this._preferences.historySeconds;
      }
    }
  }

  private _nameInCluster(machine: Machine): string {
    const own = this._vms?.entries.find(entry => !entry.machine)?.name;
    return machine.kind === 'server' ? (own ?? machine.name) : machine.name;
  }

  private _emit(): void {
    this.stateChanged.emit(undefined);
  }

  private _cluster: ResourcesModel.ICluster | null;
  private _vms: VmList | null = null;
  private _preferences = DEFAULTS;
}

export namespace ResourcesModel {
  export type ICluster = Pick<
    ClusterModel,
    'link' | 'refresh' | 'stateChanged'
  > &
    FileShelf.INotebook;

  export interface IOptions {
    client: ResourcesClient;
    feed: LiveFeed;
    /** `null` or absent: only the server's machine is shown. */
    cluster?: ICluster | null;
    /** `null` or absent: the state of cards is lost with the page. */
    state?: IStateDB | null;
  }
}
