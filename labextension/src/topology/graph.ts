/** The machine as a graph: `read` creates it from a snapshot, and `layout` places it. */
import { IUnknown, Known } from '../schema/known';
import { IGpu, INic } from '../schema/snapshot';

/** Of a node that neither the kernel nor a file reports; `branchTitle` has the text. */
export const NO_NUMA: IUnknown = { unknown: '' };

/** A device with its own row: a GPU, a NIC, or a text about a missing device. */
export interface IDevice {
  /** `gpu-0`, `nic-3`: the kind and the position in the snapshot's list. */
  readonly id: string;
  readonly kind: 'gpu' | 'nic' | 'unseen-gpu' | 'unclear' | 'no-gpu';
  /** Its position in the snapshot's list; -1 if it is in none. */
  readonly position: number;
  /** Short: `GPU 0`, `MIG 0:1`, `mlx5_0`; empty if only a text describes it. */
  readonly name: string;
  readonly gpu: IGpu | null;
  readonly nic: INic | null;
  readonly address: string | null;
  readonly numa: Known<number>;
  /** Why the kind of device is unknown; empty if it is known. */
  readonly unclear: string;
}

/** A node above devices. */
export interface IBranch {
  readonly id: string;
  readonly kind:
    /** The CPUs of one NUMA node, or of a VM that reports no node. */
    | 'node'
    /** One of several host bridges of a node. */
    | 'bridge'
    | 'switch'
    /** A GPU partitioned into MIG devices. */
    | 'board'
    /** Devices whose position is unknown. */
    | 'apart';
  /** Of a node: its number, or why it is unknown. Of a board: its GPU's. */
  readonly number: Known<number>;
  readonly children: readonly (IBranch | IDevice)[];
}

/** NVLinks between two GPUs. */
export interface IPair {
  readonly id: string;
  readonly a: string;
  readonly b: string;
  readonly links: Known<number>;
}

/** GPUs that are all connected to each other over NVLink. */
export interface IAllToAll {
  /** Whether it consists of NVSwitches, or is only known as "all connected". */
  readonly switches: boolean;
  readonly members: readonly { id: string; links: Known<number> }[];
  /** The driver's report of a problem of the fabric; empty if there is none. */
  readonly trouble: string;
}

export type Source = 'file' | 'sysfs' | 'none';

export interface IGraph {
  readonly roots: readonly IBranch[];
  /** All devices in drawing order. */
  readonly devices: readonly IDevice[];
  /** GPUs and NICs that are omitted, because there are too many for a drawing. */
  readonly left: number;
  readonly pairs: readonly IPair[];
  readonly fabric: IAllToAll | null;
  readonly source: Source;
  /** The topology file; or why there is no tree. */
  readonly origin: string;
  /** Whether a VM hides the host's switches above its GPUs and NICs. */
  readonly hidden: boolean;
}

export function isBranch(node: IBranch | IDevice): node is IBranch {
  return 'children' in node;
}

/** The devices below a branch, from the first to the last. */
export function devicesBelow(node: IBranch | IDevice): IDevice[] {
  return isBranch(node) ? node.children.flatMap(devicesBelow) : [node];
}
