/** Traversing a PCIe tree by the rules of `workbench/resources/pcie/distances.py`. */
import { isUnknown, Known } from '../schema/known';
import { IPciDevice, IPcie, IPciTree } from '../schema/snapshot';

export const SYSFS = 'sysfs';
export const TOPOLOGY_FILE = 'nccl topology file';
export const NVML = 'nvml';

/** The tree that NCCL uses: its topology file's, or else the kernel's. */
export function treeOfNccl(pcie: Known<IPcie>): IPciTree | null {
  if (isUnknown(pcie)) {
    return null;
  }
  const of = (source: string): IPciTree | undefined =>
    pcie.trees.find(tree => tree.source === source);
  return of(TOPOLOGY_FILE) ?? of(SYSFS) ?? null;
}

/** The position of a device in a tree. */
export interface IPlace {
  readonly device: IPciDevice;
  /** Addresses of the PCIe switches above it, from the root down. */
  readonly switches: readonly string[];
  /** The host bridge's name. */
  readonly root: string;
}

export class Places {
  constructor(private readonly _tree: IPciTree) {
    this._devices = new Map(_tree.devices.map(one => [one.address, one]));
  }

  get source(): string {
    return this._tree.source;
  }

  find(address: string): IPlace | null {
    const device = this._devices.get(address);
    if (!device) {
      return null;
    }
    const above = this._above(device);
    const root = above.pop() ?? '';
    // In sysfs a switch is two bridges, and the root port at the top belongs to the CPU.
    const switches =
      this._tree.source === SYSFS
        ? above.filter((_, index) => index % 2 === 1)
        : above;
    return { device, switches: switches.reverse(), root };
  }

  /** From the nearest bridge up to the root. */
  private _above(device: IPciDevice): string[] {
    const found: string[] = [];
    let parent: string | undefined = device.parent;
    // An edited file may contain a cycle.
    while (parent !== undefined && !found.includes(parent)) {
      found.push(parent);
      parent = this._devices.get(parent)?.parent;
    }
    return found;
  }

  private _devices: Map<string, IPciDevice>;
}
