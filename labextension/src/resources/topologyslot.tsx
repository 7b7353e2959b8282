import { IRank } from '../cluster/interfaces';
import { ISample, ISnapshot } from './interfaces';

export interface ITopologySlot {
  snapshot: ISnapshot;
  /** `null` before the first one, and for a file. */
  sample: ISample | null;
  /** The cluster's ranks on this machine. */
  ranks: readonly IRank[];
}

/** The one place of the topology's drawing in a card; `null`: there is none. */
export function topologySlot(_: ITopologySlot): JSX.Element | null {
  return null;
}
