/** What the panel asks of a cluster's state. */
import { ICluster } from '../schema/cluster';

/** Whether code can run on its ranks. */
export function isUp(cluster: ICluster | null): boolean {
  return cluster !== null && ['ready', 'running'].includes(cluster.state);
}

/** Whether both describe the same. */
export function same(one: ICluster | null, other: ICluster | null): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Whether there are ranks, and so VMs, or will be soon. */
export function hasRanks(cluster: ICluster | null): boolean {
  return (
    cluster !== null && ['starting', 'ready', 'running'].includes(cluster.state)
  );
}

/** Where its ranks are, as far as that is known. */
export function vmsOf(cluster: ICluster | null): string {
  const vms = hasRanks(cluster) ? cluster!.ranks.map(rank => rank.vm) : null;
  return JSON.stringify(vms);
}
