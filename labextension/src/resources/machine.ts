import { ISignal, Signal } from '@lumino/signaling';

import { History, MINUTE } from '../common/history';
import { IFinding } from '../schema/findings';
import { isUnknown, Known } from '../schema/known';
import { IGpuSample, INicSample, ISample } from '../schema/sample';
import { IGpu, ISnapshot } from '../schema/snapshot';

/** The data of one machine, from any source. */
export class Machine {
  constructor(options: Machine.IOptions) {
    this.key = options.key;
    this.kind = options.kind;
    this._name = options.name ?? '';
  }

  /** Unique, and unchanged after a reload of the page. */
  readonly key: string;
  readonly kind: Machine.Kind;

  /** Its given name, or else its hostname. */
  get name(): string {
    const hostname =
      this.snapshot && !isUnknown(this.snapshot)
        ? this.snapshot.host.hostname
        : '';
    return this._name || (isUnknown(hostname) ? '' : hostname);
  }

  /** `null` before the first answer. */
  get snapshot(): Known<ISnapshot> | null {
    return this._snapshot;
  }

  get findings(): readonly IFinding[] {
    return this._findings;
  }

  /** The newest available sample; `null` before the first one. */
  get sample(): ISample | null {
    return this._sample;
  }

  /** Why its figures are out of date; empty if they are current or not expected. */
  get trouble(): string {
    return this._trouble;
  }

  /** The number of changes. */
  get version(): number {
    return this._version;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The number of values in each series. */
  set length(length: number) {
    this._length = length;
    this._histories.forEach(history => {
      history.length = length;
    });
    this._emit();
  }

  get length(): number {
    return this._length;
  }

  /** Set its hardware and the doctor's findings on it. */
  setSnapshot(snapshot: Known<ISnapshot>, findings: readonly IFinding[]): void {
    this._snapshot = snapshot;
    this._findings = findings;
    this._emit();
  }

  /** Set its current use, or why it is unknown; then the last figures remain, as old ones. */
  take(sample: Known<ISample>): void {
    if (isUnknown(sample)) {
      this._trouble = sample.unknown;
      this._push(new Map());
      this._gaps += 1;
    } else {
      this._trouble = '';
      this._pushGaps(sample.time);
      this._sample = sample;
      this._push(Private.series(sample));
    }
    this._emit();
  }

  /** Report that no sample arrived, and why. */
  miss(reason: string): void {
    if (reason !== this._trouble) {
      this._trouble = reason;
      this._emit();
    }
  }

  /** The last values of a series: `cpu`, `memory`, `gpus` (their mean use), `nic/eth0/tx`, ... */
  history(name: string): readonly (number | null)[] {
    return this._histories.get(name)?.values ?? [];
  }

  gpuHistory(gpu: IGpu): readonly (number | null)[] {
    return this.history(Private.gpuSeries(gpu));
  }

  gpuSample(gpu: IGpu): IGpuSample | null {
    const series = Private.gpuSeries(gpu);
    const all = this._sample?.gpus ?? [];
    return (
      all.find(one => Private.gpuSeries(one) === series) ??
      all.find(one => isUnknown(one.uuid) && one.index === gpu.index) ??
      null
    );
  }

  nicSample(name: string): INicSample | null {
    return this._sample?.nics.find(one => one.name === name) ?? null;
  }

  /** Add a gap for each missed second, so that the time axis is correct. */
  private _pushGaps(time: number): void {
    const apart = Math.round(time - (this._sample?.time ?? time));
    const missed = Math.min(this._length, apart - 1) - this._gaps;
    for (let n = 0; n < missed; n++) {
      this._push(new Map());
    }
    this._gaps = 0;
  }

  private _push(values: Map<string, Known<number>>): void {
    for (const name of values.keys()) {
      if (!this._histories.has(name)) {
        this._histories.set(name, new History(this._length));
      }
    }
    this._histories.forEach((history, name) =>
      history.push(values.get(name) ?? null)
    );
  }

  private _emit(): void {
    this._version += 1;
    this._changed.emit();
  }

  private _name: string;
  private _snapshot: Known<ISnapshot> | null = null;
  private _findings: readonly IFinding[] = [];
  private _sample: ISample | null = null;
  private _trouble = '';
  /** Number of gaps since the newest sample. */
  private _gaps = 0;
  private _length = MINUTE;
  private _histories = new Map<string, History>();
  private _version = 0;
  private _changed = new Signal<this, void>(this);
}

export namespace Machine {
  /** The Jupyter server's, another one of the cluster, or one described by a file. */
  export type Kind = 'server' | 'vm' | 'file';

  export interface IOptions {
    key: string;
    kind: Kind;
    name?: string;
  }
}

namespace Private {
  /** MIG devices share the index of their GPU; the UUID distinguishes them. */
  export function gpuSeries(gpu: IGpu | IGpuSample): string {
    return isUnknown(gpu.uuid) ? `gpu/${gpu.index}` : `gpu/${gpu.uuid}`;
  }

  export function series(sample: ISample): Map<string, Known<number>> {
    const values = new Map<string, Known<number>>([
      ['cpu', sample.cpu.percent],
      ['memory', sample.memory.used_bytes]
    ]);
    if (sample.gpus.length > 0) {
      values.set('gpus', meanUse(sample));
    }
    for (const gpu of sample.gpus) {
      values.set(gpuSeries(gpu), gpu.utilization_percent);
    }
    for (const nic of sample.nics) {
      values.set(`nic/${nic.name}/tx`, nic.tx_bytes_per_s);
      values.set(`nic/${nic.name}/rx`, nic.rx_bytes_per_s);
      values.set(`nic/${nic.name}/rdma_tx`, nic.rdma_tx_bytes_per_s);
      values.set(`nic/${nic.name}/rdma_rx`, nic.rdma_rx_bytes_per_s);
    }
    return values;
  }

  export function meanUse(sample: ISample): Known<number> {
    const first = sample.gpus[0].utilization_percent;
    const uses = sample.gpus
      .map(gpu => gpu.utilization_percent)
      .filter((use): use is number => !isUnknown(use));
    return uses.length === 0
      ? first
      : uses.reduce((sum, use) => sum + use, 0) / uses.length;
  }
}

/** The mean use of a sample's GPUs in percent, over those with a value. */
export function meanGpuUse(sample: ISample): Known<number> | null {
  return sample.gpus.length > 0 ? Private.meanUse(sample) : null;
}
