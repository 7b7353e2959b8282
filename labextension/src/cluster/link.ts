import { Kernel } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { KernelComm } from '../common/kernelcomm';
import { ENGLISH, ITranslate } from '../common/translate';
import {
  ClusterState,
  ICluster,
  IStartOptions,
  readKernelMessage,
  Request
} from '../schema/cluster';
import { Known } from '../schema/known';
import { ISample } from '../schema/sample';
import { toArguments } from './fields';
import { SharedWait } from './sharedwait';
import { hasRanks, isUp, same, vmsOf } from './states';
import { VmList } from './vms';
import { Watch } from './watch';

export const TARGET = 'workbench.cluster';

/** Fixed, so that a reloaded page connects to the same kernel. */
export const COMM_ID = 'workbench-cluster';

const LOAD = '%load_ext workbench';

/**
 * The panel's connection to one kernel: receives the state of its cluster, and
 * requests its start and stop.
 */
export class KernelLink implements IDisposable {
  constructor(options: KernelLink.IOptions) {
    this.kernel = options.kernel;
    this._trans = options.trans ?? ENGLISH;
    this.vms = new VmList(this._trans);
    this.kernel.disposed.connect(this.dispose, this);
    this._comm = new KernelComm<Request>({
      kernel: this.kernel,
      target: TARGET,
      id: COMM_ID,
      onMessage: message => this._onMessage(message.content.data),
      onJoin: comm => void this._ask(comm),
      onLeave: () => this._onLeave(),
      trans: this._trans
    });
  }

  readonly kernel: Kernel.IKernelConnection;

  /** The VMs of its cluster, as far as they are watched. */
  readonly vms: VmList;

  get state(): KernelLink.IState {
    return this._state;
  }

  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Start a cluster; load the extension first if the kernel has not. */
  async start(options: IStartOptions): Promise<void> {
    await this._attempt('start', async () => {
      if (!this._state.loaded) {
        await this._load();
      }
      await this._comm.send({
        type: 'start',
        options: toArguments(options)
      });
    });
  }

  /** Replace the lost ranks. */
  async restart(): Promise<void> {
    await this._attempt('restart', () => this._comm.send({ type: 'restart' }));
  }

  /** Change the number of ranks, of all VMs together. */
  async resize(ranks: number): Promise<void> {
    await this._attempt('resize', () =>
      this._comm.send({ type: 'resize', ranks })
    );
  }

  /** Measure the fabric between its ranks. */
  async calibrate(): Promise<void> {
    await this._attempt('calibrate', () =>
      this._comm.send({ type: 'calibrate' })
    );
  }

  async stop(): Promise<void> {
    await this._attempt('stop', () => this._comm.send({ type: 'stop' }));
  }

  /**
   * Start the live view of the cluster for a tab, and return its first snapshot. Rejects if
   * the kernel ends before it answers. All who wait get the same answer.
   */
  openLive(): Promise<unknown> {
    return this._live.ask(() => this._comm.send({ type: 'live' }));
  }

  /** Whether the VMs are shown; they are only sampled then. */
  set watched(watched: boolean) {
    this._watch.on = watched;
    if (!watched) {
      this.vms.sleep();
    }
  }

  /** Request the state of the cluster and its VMs again. */
  async refresh(): Promise<void> {
    if (this._state.loaded) {
      await this._attempt(null, () => this._comm.send({ type: 'refresh' }));
      this._watch.send();
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._endWait();
    this._watch.dispose();
    this.vms.dispose();
    this._comm.dispose();
    Signal.clearData(this);
  }

  /** Request the state if the kernel has the extension. */
  private async _ask(comm: Kernel.IComm): Promise<void> {
    try {
      const info = await this.kernel.info;
      const language = info.language_info.name;
      if (language !== 'python') {
        this._setState({ language });
        return;
      }
      const reply = await this.kernel.requestCommInfo({ target_name: TARGET });
      const there =
        reply.content.status === 'ok' && COMM_ID in reply.content.comms;
      if (there && comm === this._comm.current) {
        await this._comm.send({ type: 'refresh' });
      }
    } catch (error) {
      // The kernel was restarted or has ended; `_onStatus` connects to the next one.
      console.debug('gradient-workbench: the kernel did not answer', error);
    }
  }

  private async _attempt(
    pending: KernelLink.Pending,
    task: () => Promise<void>
  ): Promise<void> {
    this._setState({ pending, error: '' });
    try {
      await task();
    } catch (error) {
      this._setState({ pending: null, error: (error as Error).message });
    }
  }

  private async _load(): Promise<void> {
    const future = this.kernel.requestExecute({
      code: LOAD,
      silent: true,
      store_history: false,
      allow_stdin: false
    });
    const { content } = await future.done;
    if (content.status === 'error') {
      throw new Error(
        this._trans.__(
          '%1 failed in this kernel: %2: %3',
          LOAD,
          content.ename,
          content.evalue
        )
      );
    }
  }

  private _onMessage(data: unknown): void {
    try {
      const message = readKernelMessage(data, 'message', this._trans);
      switch (message.type) {
        case 'state':
          return this._onCluster(message.cluster);
        case 'vms':
          return this.vms.hearVms(
            message.vms,
            message.findings,
            message.weakest
          );
        case 'samples':
          return this._onSamples(message.samples);
        case 'training':
          return this._setState({ exposedShare: message.exposed_share });
        case 'live':
          return this._live.resolve(message.snapshot);
        case 'error':
          if (['live', ''].includes(message.request)) {
            this._live.reject(message.message);
          }
          return this._setState({ error: message.message, pending: null });
        case 'done':
          return this._onDone(message.request);
      }
    } catch (error) {
      this._setState({ error: (error as Error).message, pending: null });
    }
  }

  private _onDone(request: string): void {
    if (request === this._state.pending) {
      this._setState({ pending: null });
    }
  }

  /** Ignore samples that arrive after the end of the watch. */
  private _onSamples(samples: Readonly<Record<string, Known<ISample>>>): void {
    if (this._watch.on) {
      this.vms.hearSamples(samples);
    }
  }

  private _onCluster(cluster: ICluster | null): void {
    const moved = vmsOf(cluster) !== vmsOf(this._state.cluster);
    // The cluster has started: an earlier failure is obsolete.
    const over = isUp(cluster) && !isUp(this._state.cluster);
    this._setState({
      loaded: true,
      // While a cell runs the same state is sent repeatedly.
      cluster: same(cluster, this._state.cluster)
        ? this._state.cluster
        : cluster,
      pending: this._stillPending(cluster),
      error: over ? '' : this._state.error
    });
    if (!hasRanks(cluster)) {
      this.vms.clear();
    }
    if (moved) {
      this._watch.send();
    }
  }

  /** A request is complete once the cluster has started to execute it. */
  private _stillPending(cluster: ICluster | null): KernelLink.Pending {
    const { pending } = this._state;
    const state = cluster?.state ?? 'stopped';
    return pending && Private.TAKEN[pending].includes(state) ? null : pending;
  }

  private _endWait(): void {
    this._live.reject(
      this._trans.__('The kernel was restarted in the meantime. Try again.')
    );
  }

  private _onLeave(): void {
    this._endWait();
    this._watch.forget();
    this.vms.clear();
    this._setState({
      loaded: false,
      cluster: null,
      exposedShare: null,
      pending: null
    });
  }

  private _setState(change: Partial<KernelLink.IState>): void {
    this._state = { ...this._state, ...change };
    this._stateChanged.emit();
  }

  private _trans: ITranslate;
  private _comm: KernelComm<Request>;
  private _watch = new Watch({
    canSend: () => this._state.loaded,
    hasRanks: () => hasRanks(this._state.cluster),
    mustRenew: () =>
      !this.vms.isListed || this.vms.entries.some(entry => entry.machine),
    ready: () => this._comm.ready()
  });
  private _live = new SharedWait();
  private _isDisposed = false;
  private _state: KernelLink.IState = {
    loaded: false,
    language: 'python',
    cluster: null,
    exposedShare: null,
    pending: null,
    error: ''
  };
  private _stateChanged = new Signal<this, void>(this);
}

export namespace KernelLink {
  /** A request that has not started yet. */
  export type Pending =
    'start' | 'restart' | 'resize' | 'calibrate' | 'stop' | null;

  export interface IState {
    /** Whether the kernel is known to have the extension. */
    readonly loaded: boolean;
    readonly language: string;
    readonly cluster: ICluster | null;
    /** Of the newest iterations, from 0 to 1; `null` before it is sent. */
    readonly exposedShare: Known<number> | null;
    readonly pending: Pending;
    /** Why the last request failed; empty if it succeeded. */
    readonly error: string;
  }

  export interface IOptions {
    /** A connection that handles comms. */
    kernel: Kernel.IKernelConnection;
    trans?: ITranslate;
  }
}

namespace Private {
  /** The states that a request leads to. */
  export const TAKEN: Record<
    NonNullable<KernelLink.Pending>,
    readonly ClusterState[]
  > = {
    start: ['starting', 'ready', 'running', 'stopping', 'failed'],
    restart: ['starting', 'stopping', 'stopped'],
    resize: ['starting', 'stopping', 'stopped'],
    calibrate: ['running', 'stopping', 'stopped'],
    stop: ['stopping', 'stopped', 'failed']
  };
}
