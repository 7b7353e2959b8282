/** What the server extension says about this machine. */
import { Known } from '../common/known';

export interface IHost {
  readonly hostname: Known<string>;
  readonly hypervisor: Known<string>;
  /** That this process may use. */
  readonly cpus: Known<number>;
  readonly cpus_total: Known<number>;
  readonly memory_bytes: Known<number>;
  readonly os: Known<string>;
  readonly kernel: Known<string>;
}

export interface IGpu {
  readonly index: number;
  readonly uuid: Known<string>;
  readonly name: Known<string>;
  readonly memory_bytes: Known<number>;
  readonly form: Known<string>;
  readonly vgpu_profile: Known<string>;
}

export interface INic {
  readonly name: string;
  readonly kind: 'physical' | 'virtual' | 'rdma';
  readonly rdma_device: Known<string>;
  readonly driver: Known<string>;
  readonly link_layer: Known<string>;
  readonly rate_gbps: Known<number>;
  readonly state: Known<string>;
}

export interface IProbe {
  readonly status: 'ok' | 'absent' | 'failed';
  /** In plain words; empty where the probe went well. */
  readonly reason: string;
}

export interface ISnapshot {
  readonly host: IHost;
  readonly gpus: readonly IGpu[];
  readonly nics: readonly INic[];
  readonly probes: {
    readonly host: IProbe;
    readonly gpus: IProbe;
    readonly nics: IProbe;
  };
}

export type Severity = 'error' | 'warning' | 'info';

export interface IFinding {
  readonly rule: string;
  readonly severity: Severity;
  readonly subject: string;
  readonly evidence: string;
  readonly why: string;
  readonly cure: string;
  readonly source: string;
}

export interface IGpuSample {
  readonly index: number;
  readonly utilization_percent: Known<number>;
  readonly memory_used_bytes: Known<number>;
  readonly memory_total_bytes: Known<number>;
  readonly power_w: Known<number>;
  readonly temperature_c: Known<number>;
}

export interface INicSample {
  readonly name: string;
  readonly tx_bytes_per_s: Known<number>;
  readonly rx_bytes_per_s: Known<number>;
  readonly rdma_tx_bytes_per_s: Known<number>;
  readonly rdma_rx_bytes_per_s: Known<number>;
}

/** One message of the live feed: the machine now. */
export interface ISample {
  /** Unix time in seconds. */
  readonly time: number;
  readonly cpu: { readonly percent: Known<number> };
  readonly memory: {
    readonly used_bytes: Known<number>;
    readonly total_bytes: Known<number>;
  };
  readonly gpus: readonly IGpuSample[];
  readonly nics: readonly INicSample[];
}
