/** Which GPU and NIC of the drawing a rank uses. */
import { IRank } from '../schema/cluster';
import { isUnknown } from '../schema/known';
import { IDevice, IGraph } from './graph';

/** The fields of a rank of this VM that the drawing needs. */
export type ITopologyRank = Pick<IRank, 'rank' | 'gpu' | 'nic'>;

export interface IRankPlace {
  readonly rank: number;
  /** Null if it trains on CPUs, or the kernel does not report it. */
  readonly gpu: IDevice | null;
  readonly nic: IDevice | null;
  /** Whether its GPU is omitted from the drawing. */
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

/** The ranks on a GPU; the list is identical while the ranks are. */
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

  /** `"1 (A100-40C)"` is a position in the snapshot's list, with MIG devices instead of their GPU. */
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

  /** The RDMA device if one is named, or else the interface. */
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
