import React, { useMemo } from 'react';

import { IRank } from '../cluster/interfaces';
import { Topology } from '../topology/topology';
import { ITopologySnapshot } from '../topology/interfaces';
import { validateTopology } from '../topology/validate';
import { ISample, ISnapshot } from './interfaces';
import { useShared } from './shared';

/** The one place of the topology's drawing in a card. */
export function TopologySlot(props: TopologySlot.IProps): JSX.Element {
  const { ranks, sample, snapshot } = props;
  const { trans } = useShared();
  const read = useMemo(() => readTopology(snapshot), [snapshot]);
  return typeof read === 'string' ? (
    <p className="jp-gw-Note">{trans.__('It cannot be drawn: %1.', read)}</p>
  ) : (
    <Topology snapshot={read} sample={sample} ranks={ranks} trans={trans} />
  );
}

export namespace TopologySlot {
  export interface IProps {
    snapshot: ISnapshot;
    /** `null` before the first one, and for a file. */
    sample: ISample | null;
    /** The cluster's ranks on this machine. */
    ranks: readonly IRank[];
  }
}

/** What the drawing needs of a snapshot, or what is wrong with it. */
function readTopology(snapshot: ISnapshot): ITopologySnapshot | string {
  try {
    return validateTopology(snapshot.raw);
  } catch (error) {
    return (error as Error).message;
  }
}
