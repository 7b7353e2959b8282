/** Convert a snapshot to the graph that is drawn. */
import { ENGLISH, ITranslate } from '../common/translate';
import { isUnknown, Known, orElse } from '../schema/known';
import { INic, ISnapshot } from '../schema/snapshot';
import { devicesBelow, IBranch, IDevice, IGraph, NO_NUMA } from './graph';
import { nvlinksOf } from './nvlink';
import { IPlace, Places, SYSFS, TOPOLOGY_FILE, treeOfNccl } from './tree';

const NVIDIA = '0x10de';

/** Most GPUs and NICs in a drawing: a board of 8 with 56 MIG devices, and its NICs. */
export const MAX_DRAWN = 64;

/** Everything except loads; the same snapshot yields the same graph. */
export function readGraph(
  snapshot: ISnapshot,
  most: number = MAX_DRAWN,
  trans: ITranslate = ENGLISH
): IGraph {
  const tree = treeOfNccl(snapshot.pcie);
  const places = tree && new Places(tree);
  const all = Private.devices(snapshot);
  const found = Private.first(all, most);
  const roots = Private.grow(found, places, snapshot);
  const devices = roots.flatMap(devicesBelow);
  const gpus = devices.filter(one => one.gpu !== null);
  return {
    roots,
    devices,
    left: all.length - found.length,
    ...nvlinksOf(snapshot, gpus, tree, trans),
    source: tree === null ? 'none' : tree.source === SYSFS ? 'sysfs' : 'file',
    origin:
      tree?.origin ??
      (isUnknown(snapshot.pcie)
        ? snapshot.pcie.unknown
        : trans.__('no PCI device was found')),
    hidden: tree?.source === SYSFS && Private.isHidden(snapshot, gpus, places!)
  };
}

/** NICs that connect to other VMs: all except virtual ones. */
export function realNics(snapshot: ISnapshot): INic[] {
  return snapshot.nics.filter(nic => nic.kind !== 'virtual');
}

namespace Private {
  export function devices(snapshot: ISnapshot): IDevice[] {
    // MIG devices are counted within their GPU, as in nvidia-smi.
    const counted = new Map<number, number>();
    const gpus = snapshot.gpus.map((gpu, position): IDevice => {
      const mig = gpu.form === 'mig';
      const before = counted.get(gpu.index) ?? 0;
      counted.set(gpu.index, before + Number(mig));
      return {
        id: `gpu-${position}`,
        kind: 'gpu',
        position,
        name: mig ? `MIG ${gpu.index}:${before}` : `GPU ${gpu.index}`,
        gpu,
        nic: null,
        address: orElse(gpu.pci_address, null),
        numa: NO_NUMA,
        unclear: ''
      };
    });
    const nics = snapshot.nics
      .map((nic, position): IDevice => ({
        id: `nic-${position}`,
        kind: 'nic',
        position,
        // In a topology file, a NIC may only have an address.
        name:
          nic.name === nic.pci_address
            ? `NIC ${position}`
            : orElse(nic.rdma_device, nic.name),
        gpu: null,
        nic,
        address: orElse(nic.pci_address, null),
        numa: nic.numa_node,
        unclear: ''
      }))
      .filter(one => one.nic!.kind !== 'virtual');
    const unseen = gpusWithoutDriver(snapshot);
    const unclear = ofUnknownKind(snapshot);
    const seen = gpus.length + unseen.length + unclear.length;
    const none = seen === 0 ? [noGpu()] : [];
    return [...none, ...gpus, ...unseen, ...unclear, ...nics.sort(rdmaFirst)];
  }

  /** The first GPUs and NICs; each kind gets at least half of `most`. */
  export function first(all: IDevice[], most: number): IDevice[] {
    const nics = all.filter(one => one.kind === 'nic');
    const others = all.filter(one => one.kind !== 'nic');
    const half = Math.floor(most / 2);
    const some = nics.slice(0, Math.max(half, most - others.length));
    return [...others.slice(0, most - some.length), ...some];
  }

  function rdmaFirst(a: IDevice, b: IDevice): number {
    return Number(b.nic!.kind === 'rdma') - Number(a.nic!.kind === 'rdma');
  }

  function noGpu(): IDevice {
    const nothing = { name: '', gpu: null, nic: null, address: null };
    return {
      id: 'no-gpu',
      kind: 'no-gpu',
      position: -1,
      ...nothing,
      numa: NO_NUMA,
      unclear: ''
    };
  }

  /** GPUs that the kernel sees but the driver does not. */
  function gpusWithoutDriver(snapshot: ISnapshot): IDevice[] {
    const trees = orElse(snapshot.pcie, null)?.trees ?? [];
    const seen = trees.find(tree => tree.source === SYSFS)?.devices ?? [];
    const known = new Set(snapshot.gpus.map(gpu => gpu.pci_address));
    return seen
      .filter(
        one =>
          one.kind === 'gpu' && one.vendor === NVIDIA && !known.has(one.address)
      )
      .map((one, index) => ({
        id: `unseen-gpu-${index}`,
        kind: 'unseen-gpu',
        position: -1,
        name: '',
        gpu: null,
        nic: null,
        address: one.address,
        numa: one.numa_node,
        unclear: ''
      }));
  }

  /** Devices of which a topology file, as the only source, has just the address. */
  function ofUnknownKind(snapshot: ISnapshot): IDevice[] {
    const trees = orElse(snapshot.pcie, null)?.trees ?? [];
    return (trees.some(tree => tree.source === SYSFS) ? [] : trees)
      .flatMap(tree => tree.devices)
      .filter(one => isUnknown(one.kind))
      .map((one, index) => ({
        id: `unclear-${index}`,
        kind: 'unclear',
        position: -1,
        name: one.address,
        gpu: null,
        nic: null,
        address: one.address,
        numa: one.numa_node,
        unclear: isUnknown(one.kind) ? one.kind.unknown : ''
      }));
  }

  /** The tree of branches, with each node's devices in order. */
  export function grow(
    found: IDevice[],
    places: Places | null,
    snapshot: ISnapshot
  ): IBranch[] {
    const nodes = new Map<string, IGrowing>();
    for (const device of found.filter(one => one.kind !== 'no-gpu')) {
      const place = device.address && places?.find(device.address);
      const rooted = {
        ...device,
        numa: numaOf(device, place || null, snapshot)
      };
      const top = topOf(rooted, place || null, places);
      const node = nodes.get(top.id) ?? { ...top, children: [] };
      nodes.set(top.id, node);
      insert(node, rooted, place || null);
    }
    const sorted = [...nodes.values()].sort(byNumber);
    const words = found.filter(one => one.kind === 'no-gpu');
    if (words.length > 0 && sorted.length === 0) {
      sorted.push({ ...onlyNode(snapshot), children: [] });
    }
    sorted[0]?.children.unshift(...words);
    return sorted.map(finished);
  }

  function onlyNode(snapshot: ISnapshot): Omit<IGrowing, 'children'> {
    const one = snapshot.host.numa_nodes === 1;
    return { id: 'node-0', kind: 'node', number: one ? 0 : NO_NUMA };
  }

  interface IGrowing {
    id: string;
    kind: IBranch['kind'];
    number: Known<number>;
    children: (IGrowing | IDevice)[];
  }

  /** A machine with one node reports none: all devices belong to it. */
  function numaOf(
    device: IDevice,
    place: IPlace | null,
    snapshot: ISnapshot
  ): Known<number> {
    const given = orElse(
      place?.device.numa_node ?? device.numa,
      orElse(device.numa, null)
    );
    return given ?? (snapshot.host.numa_nodes === 1 ? 0 : device.numa);
  }

  function topOf(
    device: IDevice,
    place: IPlace | null,
    places: Places | null
  ): Omit<IGrowing, 'children'> {
    if (places && place === null) {
      return { id: 'apart', kind: 'apart', number: NO_NUMA };
    }
    const number = device.numa;
    if (place && places?.source === TOPOLOGY_FILE) {
      // Each CPU separately, for any node numbers.
      return { id: `node-${place.root}`, kind: 'node', number };
    }
    return isUnknown(number)
      ? { id: 'node-?', kind: 'node', number }
      : { id: `node-${number}`, kind: 'node', number };
  }

  function insert(node: IGrowing, device: IDevice, place: IPlace | null): void {
    let at = node;
    const down: [string, IBranch['kind']][] = [];
    if (place) {
      down.push([`${node.id}/${place.root}`, 'bridge']);
      down.push(
        ...place.switches.map((one): [string, IBranch['kind']] => [
          `${node.id}/${one}`,
          'switch'
        ])
      );
    }
    if (device.gpu?.form === 'mig') {
      down.push([`board-${device.gpu.index}`, 'board']);
    }
    for (const [id, kind] of down) {
      let next = at.children.find(
        (one): one is IGrowing => 'children' in one && one.id === id
      );
      if (!next) {
        const number = kind === 'board' ? device.gpu!.index : NO_NUMA;
        next = { id, kind, number, children: [] };
        at.children.push(next);
      }
      at = next;
    }
    at.children.push(device);
  }

  /** Omit a node's only host bridge, which is identical to the node. */
  function finished(node: IGrowing): IBranch {
    const bridges = node.children.filter(
      (one): one is IGrowing => 'children' in one && one.kind === 'bridge'
    );
    const children = node.children.flatMap(one =>
      bridges.length === 1 && one === bridges[0] ? bridges[0].children : [one]
    );
    return { ...node, children: children.map(settled) };
  }

  /** Omit a host bridge with a single child, as it adds no information. */
  function settled(one: IGrowing | IDevice): IBranch | IDevice {
    if (!('children' in one)) {
      return one;
    }
    const below = one.children.map(settled);
    return one.kind === 'bridge' && below.length === 1
      ? below[0]
      : { ...one, children: below };
  }

  function byNumber(a: IGrowing, b: IGrowing): number {
    const rank = (one: IGrowing): number =>
      one.kind === 'apart' ? 1e9 : orElse(one.number, 1e8);
    return rank(a) - rank(b);
  }

  /** Whether a VM shows no switch above any GPU or NIC that could share one. */
  export function isHidden(
    snapshot: ISnapshot,
    gpus: readonly IDevice[],
    places: Places
  ): boolean {
    const { hypervisor } = snapshot.host;
    if (isUnknown(hypervisor) || hypervisor === 'none') {
      return false;
    }
    const both = [
      ...gpus.map(one => one.address),
      ...realNics(snapshot).map(nic => orElse(nic.pci_address, null))
    ];
    return (
      gpus.length > 0 &&
      both.length > 1 &&
      both.every(address => !address || !places.find(address)?.switches.length)
    );
  }
}
