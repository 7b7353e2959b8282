/** What is said about one machine. */
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

/** What the name of a vGPU's profile says, and what that permits. */
export interface IVgpuProfile {
  readonly board: string;
  /** MIG slices behind it; 0 where it is time-sliced. */
  readonly slices: Known<number>;
  readonly memory_gb: number;
  /** `A`, `B`, `C` or `Q`. */
  readonly series: string;
  readonly board_memory_gb: Known<number>;
  readonly whole_frame_buffer: Known<boolean>;
  readonly p2p: Known<boolean>;
  readonly gpudirect: Known<boolean>;
}

export interface ILicence {
  /** `licensed` or `unlicensed`. */
  readonly state: Known<string>;
}

export interface IClocks {
  readonly sm_max_mhz: Known<number>;
}

export interface INvLinks {
  /** Of all that are up together, in each direction. */
  readonly nominal_gb_per_s: Known<number>;
}

export interface IGpu {
  readonly index: number;
  readonly uuid: Known<string>;
  readonly name: Known<string>;
  readonly memory_bytes: Known<number>;
  readonly form: Known<string>;
  readonly vgpu_profile: Known<string>;
  readonly vgpu: Known<IVgpuProfile>;
  readonly licence: Known<ILicence>;
  readonly clocks: Known<IClocks>;
  readonly nvlink: Known<INvLinks>;
}

export interface INic {
  readonly name: string;
  readonly kind: 'physical' | 'virtual' | 'rdma';
  readonly rdma_device: Known<string>;
  readonly driver: Known<string>;
  readonly link_layer: Known<string>;
  readonly rate_gbps: Known<number>;
  readonly state: Known<string>;
  readonly numa_node: Known<number>;
}

export interface IProbe {
  /** `unknown`: what was read does not say whether there is any. */
  readonly status: 'ok' | 'absent' | 'failed' | 'unknown';
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
  /** As it came, for readers of its further parts. */
  readonly raw: unknown;
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

/** What a file of a topology or a snapshot holds. */
export interface IReading {
  readonly name: string;
  readonly snapshot: ISnapshot;
  readonly findings: readonly IFinding[];
}

export interface IGpuSample {
  readonly index: number;
  readonly uuid: Known<string>;
  readonly utilization_percent: Known<number>;
  readonly memory_used_bytes: Known<number>;
  readonly memory_total_bytes: Known<number>;
  readonly power_w: Known<number>;
  readonly power_limit_w: Known<number>;
  readonly temperature_c: Known<number>;
  readonly sm_clock_mhz: Known<number>;
  readonly memory_clock_mhz: Known<number>;
  /** What holds the clocks down now; empty: nothing does. */
  readonly held_by: Known<readonly string[]>;
  readonly nvlink_tx_bytes_per_s: Known<number>;
  readonly nvlink_rx_bytes_per_s: Known<number>;
  readonly pcie_tx_bytes_per_s: Known<number>;
  readonly pcie_rx_bytes_per_s: Known<number>;
  /** For so long nothing has run while a process holds memory on it. */
  readonly idle_s: Known<number>;
}

export interface INicSample {
  readonly name: string;
  readonly tx_bytes_per_s: Known<number>;
  readonly rx_bytes_per_s: Known<number>;
  readonly rdma_tx_bytes_per_s: Known<number>;
  readonly rdma_rx_bytes_per_s: Known<number>;
  readonly tx_packets_per_s: Known<number>;
  readonly rx_packets_per_s: Known<number>;
  readonly rdma_tx_packets_per_s: Known<number>;
  readonly rdma_rx_packets_per_s: Known<number>;
  readonly cnp_sent_per_s: Known<number>;
  readonly cnp_handled_per_s: Known<number>;
  readonly ecn_marked_per_s: Known<number>;
  /** Errors per second, by the counters' own names. */
  readonly errors: Known<Readonly<Record<string, Known<number>>>>;
}

/** A Jupyter kernel, a rank, or another process that uses a GPU. */
export interface IProcess {
  readonly pid: number;
  readonly name: string;
  readonly kind: 'kernel' | 'rank' | 'other';
  readonly kernel_id: string | null;
  /** Path of the notebook, as the Jupyter server knows it. */
  readonly notebook: string | null;
  readonly cluster: string | null;
  readonly rank: number | null;
  /** 100: one core. */
  readonly cpu_percent: Known<number>;
  readonly memory_bytes: Known<number>;
  readonly gpus: readonly {
    readonly index: number;
    readonly memory_used_bytes: Known<number>;
  }[];
}

/** The machine at one moment. */
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
  readonly processes: Known<readonly IProcess[]>;
}
