/** What the kernel of a notebook says about its cluster. */
import { Known } from '../common/known';

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

/** A message of the kernel. */
export type KernelMessage =
  | { readonly type: 'state'; readonly cluster: ICluster | null }
  /** What this page asked for last did not work. */
  | { readonly type: 'error'; readonly message: string };

/** A request of this page. */
export type Request =
  | { readonly type: 'start'; readonly n: number }
  | { readonly type: 'stop' | 'refresh' };
