/** What the kernel of a notebook says about its cluster. */
import { Known } from '../common/known';
import { IFinding, ISample, ISnapshot } from '../resources/interfaces';

export type ClusterState =
  'starting' | 'ready' | 'running' | 'stopping' | 'stopped' | 'failed';

export interface IRank {
  readonly rank: number;
  readonly vm: Known<string>;
  readonly pid: Known<number>;
  readonly gpu: Known<string | number>;
  readonly nic: Known<string>;
  readonly state: string;
}

export interface ICluster {
  readonly name: string;
  readonly state: ClusterState;
  /** How many ranks were asked for. */
  readonly n: number;
  /** One line for people; may be empty. */
  readonly message: string;
  readonly ranks: readonly IRank[];
}

/** One VM of the cluster. */
export interface IVm {
  readonly name: string;
  /** Whether the kernel runs on it. */
  readonly local: boolean;
  readonly snapshot: Known<ISnapshot>;
  readonly findings: readonly IFinding[];
}

/** A message of the kernel. */
export type KernelMessage =
  | { readonly type: 'state'; readonly cluster: ICluster | null }
  | {
      readonly type: 'vms';
      /** In the cluster's order. */
      readonly vms: readonly IVm[];
      /** Across the VMs. */
      readonly findings: readonly IFinding[];
    }
  | {
      readonly type: 'samples';
      /** By the VM's name; those that are not local. */
      readonly samples: Readonly<Record<string, Known<ISample>>>;
    }
  /** What this page asked for last did not work. */
  | { readonly type: 'error'; readonly message: string };

/** A request of this page. */
export type Request =
  | { readonly type: 'start'; readonly n: number }
  | { readonly type: 'stop' | 'refresh' }
  /** Whether the VMs' samples are wanted; holds for 12 s. */
  | { readonly type: 'watch'; readonly on: boolean };
