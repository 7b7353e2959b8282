/** Which GPU and NIC of the drawing a rank uses. */
import { IRank } from '../schema/cluster';
import { isUnknown } from '../schema/known';
import { IDevice, IGraph } from './graph';

/** What the drawing needs of a rank of this VM. */
export type ITopologyRank = Pick<IRank, 'rank' | 'gpu' | 'nic'>;

export interface IRankPlace {
  readonly rank: number;
  /** Null where it trains on CPUs, or the kernel does not say. */
  readonly gpu: IDevice | null;
  readonly nic: IDevice | null;
  /** Whether it names a GPU that the drawing has left out. */
  readonly isLeftOut: boolean;
}

export function placeRanks(
  ranks: readonly ITopologyRank[],
  graph: IGraph
): IRankPlace[] {
  return ranks.map(rank => {
    const gpu = Private.gpuOf(rank, graph);
    const names = !Number.isNaN(Private.numberOf(rank));
    return {
      rank: rank.rank,
      gpu,
      nic: Private.nicOf(rank, graph),
      isLeftOut: gpu === null && graph.left > 0 && names
    };
  });
}

/** The ranks on a GPU: the same list while the ranks are the same. */
export function ranksOf(
  device: IDevice,
  ranks: readonly IRankPlace[]
): readonly number[] {
  let byGpu = Private.byGpu.get(ranks);
  if (!byGpu) {
    byGpu = new Map();
    for (const one of ranks) {
      const id = one.gpu?.id ?? '';
      byGpu.set(id, [...(byGpu.get(id) ?? []), one.rank]);
    }
    Private.byGpu.set(ranks, byGpu);
  }
  return byGpu.get(device.id) ?? Private.NONE;
}

namespace Private {
  export const NONE: readonly number[] = [];

  export const byGpu = new WeakMap<
    readonly IRankPlace[],
    Map<string, readonly number[]>
  >();

  /** `"1 (A100-40C)"` counts the snapshot's list, in which a GPU cut by MIG is its parts. */
  export function numberOf(rank: ITopologyRank): number {
    return isUnknown(rank.gpu) ? NaN : parseInt(String(rank.gpu).trim(), 10);
  }

  export function gpuOf(rank: ITopologyRank, graph: IGraph): IDevice | null {
    const number = numberOf(rank);
    return (
      graph.devices.find(
        one => one.kind === 'gpu' && one.position === number
      ) ?? null
    );
  }

  /** The RDMA device where one is named, else the interface. */
  export function nicOf(rank: ITopologyRank, graph: IGraph): IDevice | null {
    if (isUnknown(rank.nic)) {
      return null;
    }
    const names = rank.nic.split(',').map(one => one.trim());
    for (const name of names.reverse()) {
      const found = graph.devices.find(
        one => one.nic?.rdma_device === name || one.nic?.name === name
      );
      if (found) {
        return found;
      }
    }
    return null;
  }
}
