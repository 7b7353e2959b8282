/** The kernel's messages about its cluster, and the page's requests. */
import { readFindings } from './findings';
import { Known } from './known';
import {
  boolean,
  dictionary,
  Infer,
  known,
  list,
  nullable,
  number,
  oneOf,
  Reader,
  record,
  string,
  tolerant,
  variants
} from './reader';
import { readSample } from './sample';
import { readSnapshot } from './snapshot';

const numberOrString: Reader<number | string> = (value, path, trans) =>
  typeof value === 'number' ? value : string(value, path, trans);

/** Read by another module. */
const anything: Reader<unknown> = value => value;

const rank = record({
  rank: number,
  vm: known(string),
  pid: known(number),
  /** `"0 (A100-40C)"`, `"CPU"`, or a number. */
  gpu: known(numberOrString),
  /** `"eth0"`, or with the RDMA device of its GPU, `"eth0, mlx5_0"`. */
  nic: known(string),
  state: string
});

function optional<T>(reader: Reader<T>, otherwise: T): Reader<T> {
  return (value, path, trans) =>
    value === undefined ? otherwise : reader(value, path, trans);
}

const state = oneOf(
  'starting',
  'ready',
  'running',
  'stopping',
  'stopped',
  'failed'
);

const cluster = record({
  name: string,
  state,
  /** The requested number of ranks. */
  n: number,
  /** One line for the user; may be empty. */
  message: string,
  /** A cell that connects to it; empty if the kernel's version knows none. */
  source: optional(string, ''),
  /** The result of its calibration; empty if there is none. */
  fabric: optional(string, ''),
  ranks: list(rank)
});

const vm = record({
  name: string,
  /** Whether the kernel runs on it. */
  local: boolean,
  snapshot: tolerant(readSnapshot),
  findings: readFindings
});

/** A link of the ring that the ranks form; see `workbench.fabric.Hop`. */
const hop = record({
  name: string,
  kind: string,
  /** Sender and receiver. */
  ranks: list(number),
  vm: string,
  /** PCI addresses at its ends, as far as they are known. */
  devices: list(string),
  gb_per_s: known(number),
  /** The device whose own link it is: a PCI address or a NIC's name; empty if between two. */
  end: string
});

const weakest: Reader<Known<Infer<typeof hop> | null>> = (value, path, trans) =>
  tolerant(nullable(hop))(value ?? null, path, trans);

export const readKernelMessage = variants({
  state: record({ cluster: nullable(cluster) }),
  vms: record({
    /** In the cluster's order. */
    vms: list(vm),
    /** Findings across the VMs. */
    findings: readFindings,
    /** The weakest hop of the ranks' ring; `null` without a ring. */
    weakest
  }),
  /** The newest iterations: the share of exposed communication, from 0 to 1. */
  training: record({ exposed_share: known(number) }),
  /** The first snapshot of a live view in a tab. */
  live: record({ snapshot: anything }),
  /** By name, for VMs that are not local. */
  samples: record({ samples: dictionary(tolerant(readSample)) }),
  /** A request failed; which one is empty if the kernel's version does not say it. */
  error: record({ message: string, request: optional(string, '') }),
  /** A request that changes the cluster has ended, in success or not. */
  done: record({ request: string })
});

export type KernelMessage = Infer<typeof readKernelMessage>;
export type ICluster = Infer<typeof cluster>;
export type ClusterState = Infer<typeof state>;
export type IRank = Infer<typeof rank>;
export type IHop = Infer<typeof hop>;
export type IVm = Infer<typeof vm>;

/** What a cluster is started with; what is left out has the default of `%cluster start`. */
export interface IStartOptions {
  /** The number of ranks; not together with `hosts`, whose slots are the ranks. */
  ranks?: number;
  /** `"vm1:2,vm2:2"`, or the path of a host file, from the notebook's folder. */
  hosts?: string;
  launcher?: string;
  backend?: string;
  sshConfig?: string;
  /** Of Slurm. */
  partition?: string;
  /** The time limit of Slurm's job, such as `2:00:00`. */
  time?: string;
  /** The IPython profile whose engines are used. */
  profile?: string;
  /** How long it survives its kernel, such as `30m`. */
  keep?: string;
  /** The time without a cell after which it stops, such as `30m`. */
  releaseAfter?: string;
}

/** A request of this page. */
export type Request =
  | {
      readonly type: 'start';
      /** By the names of the arguments of `workbench.Cluster`. */
      readonly options: Readonly<Record<string, string | number>>;
    }
  | { readonly type: 'resize'; readonly ranks: number }
  | { readonly type: 'restart' | 'calibrate' | 'stop' | 'refresh' | 'live' }
  /** Whether the VMs' samples are needed; the kernel forgets it after 12 s. */
  | { readonly type: 'watch'; readonly on: boolean };
