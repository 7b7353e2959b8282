/** The machine as a graph: what `read` makes of a snapshot and `layout` places. */
import { Known } from '../schema/known';
import { IGpu, INic } from '../schema/snapshot';

/** A device of its own row: a GPU, a NIC, or a word about what is not there. */
export interface IDevice {
  /** `gpu-0`, `nic-3`: the kind and the place in the snapshot's list. */
  readonly id: string;
  readonly kind: 'gpu' | 'nic' | 'unseen-gpu' | 'unclear' | 'no-gpu';
  /** Its place in the snapshot's list; -1 where it is in none. */
  readonly position: number;
  /** Short: `GPU 0`, `MIG 0:1`, `mlx5_0`; empty where only words say what it is. */
  readonly name: string;
  readonly gpu: IGpu | null;
  readonly nic: INic | null;
  readonly address: string | null;
  readonly numa: Known<number>;
  /** Why it is not known what the device is; empty where it is known. */
  readonly unclear: string;
}

/** What devices hang from. */
export interface IBranch {
  readonly id: string;
  readonly kind:
    /** The CPUs of one NUMA node, or of a VM that reports no node. */
    | 'node'
    /** One of several host bridges of a node. */
    | 'bridge'
    | 'switch'
    /** A GPU that is cut into MIG devices. */
    | 'board'
    /** Devices whose place is not known. */
    | 'apart';
  /** Of a node: its number, or why it is not known. Of a board: its GPU's. */
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

/** GPUs that all reach each other over NVLink. */
export interface IAllToAll {
  /** Whether it is made of NVSwitches, or known only as "each reaches each". */
  readonly switches: boolean;
  readonly members: readonly { id: string; links: Known<number> }[];
  /** What the fabric lacks, in the driver's words; empty where nothing is wrong. */
  readonly trouble: string;
}

export type Source = 'file' | 'sysfs' | 'none';

export interface IGraph {
  readonly roots: readonly IBranch[];
  /** Every device, in the order in which it is drawn. */
  readonly devices: readonly IDevice[];
  /** GPUs and NICs that are left out, for there are more than a drawing holds. */
  readonly left: number;
  readonly pairs: readonly IPair[];
  readonly fabric: IAllToAll | null;
  readonly source: Source;
  /** The topology file; why there is no tree where there is none. */
  readonly origin: string;
  /** Whether a VM shows its GPUs and NICs without the host's switches. */
  readonly hidden: boolean;
}

export function isBranch(node: IBranch | IDevice): node is IBranch {
  return 'children' in node;
}

/** The devices below a branch, from the first to the last. */
export function devicesBelow(node: IBranch | IDevice): IDevice[] {
  return isBranch(node) ? node.children.flatMap(devicesBelow) : [node];
}
