import React, { useMemo } from 'react';

import { IRank } from '../cluster/interfaces';
import { ITopologySnapshot } from '../topology/interfaces';
import { Topology } from '../topology/topology';
import { validateTopology } from '../topology/validate';
import { ISample, ISnapshot } from './interfaces';
import { useShared } from './shared';

/** What a machine has, drawn; or why that cannot be. */
export function Drawing(props: {
  snapshot: ISnapshot;
  /** `null` before the first one, and for a file. */
  sample: ISample | null;
  /** The cluster's ranks on this machine. */
  ranks: readonly IRank[];
}): JSX.Element {
  const { sample, ranks } = props;
  const { trans } = useShared();
  const { raw } = props.snapshot;
  const read = useMemo(() => Private.read(raw), [raw]);
  return typeof read === 'string' ? (
    <p className="jp-gw-Note jp-gw-mod-error">
      {trans.__('The topology cannot be drawn: %1', read)}
    </p>
  ) : (
    <Topology snapshot={read} sample={sample} ranks={ranks} trans={trans} />
  );
}

namespace Private {
  export function read(raw: unknown): ITopologySnapshot | string {
    try {
      return validateTopology(raw);
    } catch (error) {
      return (error as Error).message;
    }
  }
}
