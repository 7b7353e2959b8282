import {
  known,
  knownIfSent,
  list,
  number,
  Reader,
  record,
  string
} from '../common/validate';
import {
  IDistance,
  IFabric,
  IFileNvlink,
  IGpuDirect,
  IGpuPair,
  INvlink,
  INvlinks,
  IPciDevice,
  IPcie,
  IPcieLink,
  IPciRoot,
  IPciTree,
  ITopologyGpu,
  ITopologyNic,
  ITopologySnapshot
} from './interfaces';

const boolean: Reader<boolean> = (value, where) => {
  if (typeof value !== 'boolean') {
    throw new Error(`${where}: expected true or false, found ${value}`);
  }
  return value;
};

const nvlink = record<INvlink>({
  state: known(string),
  peer: known(string),
  peer_pci_address: known(string)
});

const nvlinks = record<INvlinks>({
  links: known(list(nvlink)),
  nominal_gb_per_s: known(number),
  fabric: known(
    record<IFabric>({ state: known(string), status: known(string) })
  )
});

const gpu = record<ITopologyGpu>({
  index: number,
  uuid: known(string),
  name: known(string),
  pci_address: known(string),
  form: known(string),
  vgpu_profile: known(string),
  pcie_link: knownIfSent(
    record<IPcieLink>({ generation_max: known(number), width: known(number) })
  ),
  nvlink: knownIfSent(nvlinks)
});

const nic = record<ITopologyNic>({
  name: string,
  kind: string,
  rdma_device: known(string),
  link_layer: known(string),
  rate_gbps: known(number),
  state: known(string),
  numa_node: known(number),
  pci_address: known(string)
});

const pair = record<IGpuPair>({
  first: number,
  second: number,
  p2p_nvlink: known(string)
});

const tree = record<IPciTree>({
  source: string,
  origin: string,
  roots: list(record<IPciRoot>({ name: string, numa_node: known(number) })),
  devices: list(
    record<IPciDevice>({
      address: string,
      parent: string,
      kind: known(string),
      vendor: known(string),
      numa_node: known(number)
    })
  ),
  nvlinks: list(
    record<IFileNvlink>({
      gpu: string,
      peer: string,
      count: known(number),
      peer_class: known(string)
    })
  )
});

const pcie = record<IPcie>({
  trees: list(tree),
  distances: list(
    record<IDistance>({
      a: string,
      b: string,
      distance: known(string),
      source: string
    })
  ),
  gpudirect: list(
    record<IGpuDirect>({
      gpu: string,
      nic: string,
      possible: known(boolean),
      why: string
    })
  )
});

const snapshot = record<ITopologySnapshot>({
  host: record<ITopologySnapshot['host']>({
    hostname: known(string),
    hypervisor: known(string),
    numa_nodes: knownIfSent(number)
  }),
  gpus: list(gpu),
  gpu_pairs: knownIfSent(list(pair)),
  nics: list(nic),
  pcie: knownIfSent(pcie),
  probes: record({ gpus: record({ reason: string }) })
});

/**
 * Read what is drawn of a snapshot's plain JSON, whose version was looked at before.
 *
 * Throws an error that names the field and what was found in it.
 */
export function validateTopology(data: unknown): ITopologySnapshot {
  return snapshot(data, 'snapshot');
}
