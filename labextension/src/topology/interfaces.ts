/** What the drawing needs of a snapshot, of a sample and of a cluster's ranks. */
import { Known } from '../common/known';

export interface INvlink {
  readonly state: Known<string>;
  /** `"gpu"`, `"switch"` or `"npu"`. */
  readonly peer: Known<string>;
  readonly peer_pci_address: Known<string>;
}

export interface IFabric {
  /** `"not started"`, `"in progress"` or `"completed"`. */
  readonly state: Known<string>;
  readonly status: Known<string>;
}

export interface INvlinks {
  readonly links: Known<readonly INvlink[]>;
  /** Of all links that are up, in each direction. */
  readonly nominal_gb_per_s: Known<number>;
  readonly fabric: Known<IFabric>;
}

export interface IPcieLink {
  readonly generation_max: Known<number>;
  readonly width: Known<number>;
}

export interface ITopologyGpu {
  readonly index: number;
  readonly uuid: Known<string>;
  readonly name: Known<string>;
  readonly pci_address: Known<string>;
  readonly form: Known<string>;
  readonly vgpu_profile: Known<string>;
  readonly pcie_link: Known<IPcieLink>;
  readonly nvlink: Known<INvlinks>;
}

export interface ITopologyNic {
  readonly name: string;
  readonly kind: string;
  readonly rdma_device: Known<string>;
  readonly link_layer: Known<string>;
  readonly rate_gbps: Known<number>;
  readonly state: Known<string>;
  readonly numa_node: Known<number>;
  readonly pci_address: Known<string>;
}

export interface IGpuPair {
  /** NVML's indices. */
  readonly first: number;
  readonly second: number;
  readonly p2p_nvlink: Known<string>;
}

export interface IPciDevice {
  readonly address: string;
  /** Address of the bridge above, or the name of a root. */
  readonly parent: string;
  /** `"gpu"`, `"nic"`, `"bridge"` or `"other"`; a topology file may not say. */
  readonly kind: Known<string>;
  readonly vendor: Known<string>;
  readonly numa_node: Known<number>;
}

export interface IPciRoot {
  readonly name: string;
  readonly numa_node: Known<number>;
}

/** NVLinks of one GPU to one peer, as a topology file tells of them. */
export interface IFileNvlink {
  readonly gpu: string;
  readonly peer: string;
  readonly count: Known<number>;
  readonly peer_class: Known<string>;
}

export interface IPciTree {
  readonly source: string;
  readonly origin: string;
  readonly roots: readonly IPciRoot[];
  readonly devices: readonly IPciDevice[];
  readonly nvlinks: readonly IFileNvlink[];
}

export interface IDistance {
  readonly a: string;
  readonly b: string;
  readonly distance: Known<string>;
  readonly source: string;
}

export interface IGpuDirect {
  readonly gpu: string;
  readonly nic: string;
  readonly possible: Known<boolean>;
  readonly why: string;
}

export interface IPcie {
  readonly trees: readonly IPciTree[];
  readonly distances: readonly IDistance[];
  readonly gpudirect: readonly IGpuDirect[];
}

/** The part of a snapshot that is drawn; read it with `validateTopology`. */
export interface ITopologySnapshot {
  readonly host: {
    readonly hostname: Known<string>;
    readonly hypervisor: Known<string>;
    readonly numa_nodes: Known<number>;
  };
  readonly gpus: readonly ITopologyGpu[];
  readonly gpu_pairs: Known<readonly IGpuPair[]>;
  readonly nics: readonly ITopologyNic[];
  readonly pcie: Known<IPcie>;
  readonly probes: { readonly gpus: { readonly reason: string } };
}

/** Loads of a GPU, in bytes per second; what an older server does not send is not known. */
export interface IGpuLoad {
  readonly index: number;
  /** Tells MIG devices of one GPU apart; without it their order does. */
  readonly uuid?: Known<string>;
  readonly nvlink_tx_bytes_per_s?: Known<number>;
  readonly nvlink_rx_bytes_per_s?: Known<number>;
  readonly pcie_tx_bytes_per_s?: Known<number>;
  readonly pcie_rx_bytes_per_s?: Known<number>;
}

export interface INicLoad {
  readonly name: string;
  readonly tx_bytes_per_s: Known<number>;
  readonly rx_bytes_per_s: Known<number>;
}

/** The part of a sample that is drawn; an `ISample` is one. */
export interface ITopologySample {
  readonly gpus: readonly IGpuLoad[];
  readonly nics: readonly INicLoad[];
}

/** A rank of this VM; an `IRank` of the cluster is one. */
export interface ITopologyRank {
  readonly rank: number;
  /** `"0 (A100-40C)"`, `"CPU"`, or a number. */
  readonly gpu: Known<string | number>;
  /** `"eth0"`, or with the RDMA device of its GPU: `"eth0, mlx5_0"`. */
  readonly nic: Known<string>;
}
