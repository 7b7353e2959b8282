import React from 'react';

import { RankTable } from '../common/ranktable';
import { IRank } from '../schema/cluster';
import { isUnknown } from '../schema/known';
import { IGpu } from '../schema/snapshot';
import { Machine } from './machine';
import { Section } from './section';
import { useShared } from './shared';

/** Ranks listed at a time. */
const MAX_SHOWN = 32;

/** Which rank of the cluster uses which GPU and NIC of a machine. */
export function Ranks(props: {
  machine: Machine;
  ranks: readonly IRank[];
}): JSX.Element | null {
  const { machine, ranks } = props;
  const { trans } = useShared();
  return ranks.length === 0 ? null : (
    <Section
      machine={machine}
      name="ranks"
      title={trans.__('Ranks')}
      detail={String(ranks.length)}
    >
      <RankTable
        ranks={ranks}
        columns={['gpu', 'nic']}
        first={MAX_SHOWN}
        label={trans.__('Each rank with its GPU and NIC')}
        trans={trans}
      />
    </Section>
  );
}

/**
 * The ranks on one GPU of `gpus`. A rank identifies its GPU by the position among the
 * usable ones, such as `0 (A100-40C)`; a partitioned GPU is used through its MIG devices.
 */
export function ranksOnGpu(
  gpu: IGpu,
  gpus: readonly IGpu[],
  ranks: readonly IRank[]
): readonly IRank[] {
  const cut = new Set(
    gpus.filter(one => one.form === 'mig').map(one => one.index)
  );
  const usable = gpus.filter(one => one.form === 'mig' || !cut.has(one.index));
  const place = usable.indexOf(gpu);
  return ranks.filter(rank => {
    const found = isUnknown(rank.gpu) ? null : /^\d+/.exec(String(rank.gpu));
    return found !== null && Number(found[0]) === place;
  });
}
