/** Predicates on the state of a cluster. */
import { ICluster } from '../schema/cluster';

/** Whether code can run on its ranks. */
export function isUp(cluster: ICluster | null): boolean {
  return cluster !== null && ['ready', 'running'].includes(cluster.state);
}

/** Whether both have the same content. */
export function same(one: ICluster | null, other: ICluster | null): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Whether there are ranks, and therefore VMs, or will be soon. */
export function hasRanks(cluster: ICluster | null): boolean {
  return (
    cluster !== null && ['starting', 'ready', 'running'].includes(cluster.state)
  );
}

/** The VMs of its ranks, as far as known. */
export function vmsOf(cluster: ICluster | null): string {
  const vms = hasRanks(cluster) ? cluster!.ranks.map(rank => rank.vm) : null;
  return JSON.stringify(vms);
}

/** How many of its ranks are lost. */
export function lostRanks(cluster: ICluster): number {
  return cluster.ranks.filter(rank => rank.state === 'dead').length;
}
