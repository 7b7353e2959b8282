import { VDomModel } from '@jupyterlab/ui-components';
import { Poll } from '@lumino/polling';

import { History } from '../common/history';
import { ResourcesClient } from './client';
import {
  IFinding,
  IGpuSample,
  INicSample,
  ISample,
  ISnapshot
} from './interfaces';
import { LiveFeed } from './livefeed';

/** Hardware and settings change rarely; the counters have a feed of their own. */
const SNAPSHOT_INTERVAL_MS = 60_000;

/**
 * What this machine has, what the doctor says to it, and how busy it is.
 *
 * Asleep (no request, no socket) until `awake` is set.
 */
export class ResourcesModel extends VDomModel {
  constructor(options: ResourcesModel.IOptions) {
    super();
    this._client = options.client;
    this._feed = options.feed;
    this._feed.received.connect(this._onSample, this);
    this._feed.stateChanged.connect(this._emit, this);
    this._poll = new Poll({
      auto: false,
      factory: () => this._fetch(),
      frequency: {
        interval: SNAPSHOT_INTERVAL_MS,
        backoff: true,
        max: 300_000
      },
      name: 'gradient-workbench:snapshot',
      standby: 'when-hidden'
    });
  }

  /** `null` before the first answer. */
  get snapshot(): ISnapshot | null {
    return this._snapshot;
  }

  get findings(): readonly IFinding[] {
    return this._findings;
  }

  /** Why the last request failed; empty where it went well. */
  get error(): string {
    return this._error;
  }

  /** The newest sample; `null` before the first one. */
  get sample(): ISample | null {
    return this._sample;
  }

  get feedState(): LiveFeed.State {
    return this._feed.state;
  }

  get awake(): boolean {
    return this._awake;
  }

  set awake(awake: boolean) {
    if (awake === this._awake || this.isDisposed) {
      return;
    }
    this._awake = awake;
    if (awake) {
      this._feed.start();
      void this._poll.refresh();
    } else {
      this._feed.stop();
      void this._poll.stop();
    }
  }

  /** The last minute of a series, by its name such as `cpu` or `nic/eth0/tx`. */
  history(name: string): readonly (number | null)[] {
    return this._histories.get(name)?.values ?? [];
  }

  gpuSample(index: number): IGpuSample | null {
    return this._sample?.gpus.find(one => one.index === index) ?? null;
  }

  nicSample(name: string): INicSample | null {
    return this._sample?.nics.find(one => one.name === name) ?? null;
  }

  /** Ask again, now. */
  async refresh(): Promise<void> {
    await this._poll.refresh();
    await this._poll.tick;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._poll.dispose();
    this._feed.dispose();
    super.dispose();
  }

  private async _fetch(): Promise<void> {
    try {
      [this._snapshot, this._findings] = await Promise.all([
        this._client.snapshot(),
        this._client.findings()
      ]);
      this._error = '';
    } catch (error) {
      this._error = (error as Error).message;
      throw error; // the poll counts failures and slows down
    } finally {
      this._emit();
    }
  }

  private _onSample(_: LiveFeed, sample: ISample): void {
    this._sample = sample;
    this._push('cpu', sample.cpu.percent);
    this._push('memory', sample.memory.used_bytes);
    for (const gpu of sample.gpus) {
      this._push(`gpu/${gpu.index}`, gpu.utilization_percent);
    }
    for (const nic of sample.nics) {
      this._push(`nic/${nic.name}/tx`, nic.tx_bytes_per_s);
      this._push(`nic/${nic.name}/rx`, nic.rx_bytes_per_s);
      this._push(`nic/${nic.name}/rdma_tx`, nic.rdma_tx_bytes_per_s);
      this._push(`nic/${nic.name}/rdma_rx`, nic.rdma_rx_bytes_per_s);
    }
    this._emit();
  }

  private _push(name: string, value: Parameters<History['push']>[0]): void {
    let history = this._histories.get(name);
    if (!history) {
      history = new History();
      this._histories.set(name, history);
    }
    history.push(value);
  }

  private _emit(): void {
    this.stateChanged.emit(undefined);
  }

  private _client: ResourcesModel.IClient;
  private _feed: LiveFeed;
  private _poll: Poll;
  private _awake = false;
  private _snapshot: ISnapshot | null = null;
  private _findings: readonly IFinding[] = [];
  private _error = '';
  private _sample: ISample | null = null;
  private _histories = new Map<string, History>();
}

export namespace ResourcesModel {
  export type IClient = Pick<ResourcesClient, 'snapshot' | 'findings'>;

  export interface IOptions {
    client: IClient;
    feed: LiveFeed;
  }
}
