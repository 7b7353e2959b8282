/** A snapshot of one machine, as written by `workbench/resources`. */
import {
  boolean,
  Infer,
  known,
  knownIfSent,
  list,
  number,
  oneOf,
  record,
  string,
  tolerant,
  versioned
} from './reader';

/** The version that this page reads. */
export const SNAPSHOT_VERSION = 2;

const host = record({
  hostname: known(string),
  hypervisor: known(string),
  /** CPUs that this process may use. */
  cpus: known(number),
  cpus_total: known(number),
  memory_bytes: known(number),
  numa_nodes: tolerant(knownIfSent(number)),
  os: known(string),
  kernel: known(string)
});

/** The meaning of a vGPU's profile name, and what it permits. */
const vgpu = record({
  board: string,
  /** Its MIG slices; 0 if it is time-sliced. */
  slices: known(number),
  memory_gb: number,
  /** `A`, `B`, `C` or `Q`. */
  series: string,
  board_memory_gb: known(number),
  whole_frame_buffer: known(boolean),
  p2p: known(boolean),
  gpudirect: known(boolean)
});

const nvlink = record({
  state: known(string),
  /** `"gpu"`, `"switch"` or `"npu"`. */
  peer: known(string),
  peer_pci_address: known(string)
});

const fabric = record({
  /** `"not started"`, `"in progress"` or `"completed"`. */
  state: known(string),
  status: known(string)
});

const pcieLink = record({
  generation_max: known(number),
  width: known(number)
});

const gpu = record({
  index: number,
  uuid: known(string),
  name: known(string),
  pci_address: tolerant(string),
  memory_bytes: known(number),
  form: known(string),
  vgpu_profile: known(string),
  vgpu: knownIfSent(vgpu),
  /** `licensed` or `unlicensed`. */
  licence: knownIfSent(record({ state: known(string) })),
  clocks: knownIfSent(record({ sm_max_mhz: known(number) })),
  pcie_link: tolerant(knownIfSent(pcieLink)),
  nvlink: knownIfSent(
    record({
      links: tolerant(list(nvlink)),
      /** The sum over all active links, in each direction. */
      nominal_gb_per_s: known(number),
      fabric: tolerant(fabric)
    })
  )
});

/** Two GPUs, by NVML's indices. */
const gpuPair = record({
  first: number,
  second: number,
  p2p_nvlink: known(string)
});

const nic = record({
  name: string,
  kind: oneOf('physical', 'virtual', 'rdma'),
  rdma_device: known(string),
  driver: known(string),
  link_layer: known(string),
  rate_gbps: known(number),
  state: known(string),
  numa_node: knownIfSent(number),
  pci_address: tolerant(string)
});

const pciDevice = record({
  address: string,
  /** Address of the bridge above, or the name of a root. */
  parent: string,
  /** `"gpu"`, `"nic"`, `"bridge"` or `"other"`; may be missing in a topology file. */
  kind: known(string),
  vendor: known(string),
  numa_node: known(number)
});

/** NVLinks of one GPU to one peer, as listed in a topology file. */
const fileNvlink = record({
  gpu: string,
  peer: string,
  count: known(number),
  peer_class: known(string)
});

const pciTree = record({
  source: string,
  origin: string,
  roots: list(record({ name: string, numa_node: known(number) })),
  devices: list(pciDevice),
  nvlinks: list(fileNvlink)
});

const distance = record({
  a: string,
  b: string,
  distance: known(string),
  source: string
});

const gpuDirect = record({
  gpu: string,
  nic: string,
  possible: known(boolean),
  why: string
});

const pcie = record({
  trees: list(pciTree),
  distances: list(distance),
  gpudirect: list(gpuDirect)
});

const probe = record({
  /** `unknown`: the source does not show whether there is any. */
  status: oneOf('ok', 'absent', 'failed', 'unknown'),
  /** The reason; empty if the probe succeeded. */
  reason: string
});

/** Fields used only by the topology drawing may be invalid: the cards do not need them. */
export const readSnapshot = versioned(SNAPSHOT_VERSION, {
  host,
  gpus: list(gpu),
  gpu_pairs: tolerant(knownIfSent(list(gpuPair))),
  nics: list(nic),
  pcie: tolerant(knownIfSent(pcie)),
  probes: record({ host: probe, gpus: probe, nics: probe })
});

export type ISnapshot = Infer<typeof readSnapshot>;
export type IHost = Infer<typeof host>;
export type IVgpuProfile = Infer<typeof vgpu>;
export type IGpu = Infer<typeof gpu>;
export type INvlink = Infer<typeof nvlink>;
export type INic = Infer<typeof nic>;
export type IProbe = Infer<typeof probe>;
export type IPcie = Infer<typeof pcie>;
export type IPciTree = Infer<typeof pciTree>;
export type IPciDevice = Infer<typeof pciDevice>;
export type IDistance = Infer<typeof distance>;
