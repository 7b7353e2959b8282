import React from 'react';

import { More, useSome } from '../common/some';
import { Text } from '../common/value';
import { IRank } from '../schema/cluster';
import { isUnknown } from '../schema/known';
import { IGpu } from '../schema/snapshot';
import { Machine } from './machine';
import { Section } from './section';
import { useShared } from './shared';

/** So many are listed at once. */
const MOST = 32;

/** Which rank of the cluster uses which GPU and NIC of a machine. */
export function Ranks(props: {
  machine: Machine;
  ranks: readonly IRank[];
}): JSX.Element | null {
  const { machine, ranks } = props;
  const { trans } = useShared();
  const some = useSome(ranks, MOST);
  return ranks.length === 0 ? null : (
    <Section
      machine={machine}
      name="ranks"
      title={trans.__('Ranks')}
      detail={String(ranks.length)}
    >
      <table
        className="jp-gw-Table"
        aria-label={trans.__('Each rank with its GPU and NIC')}
      >
        <thead>
          <tr>
            <th className="jp-gw-mod-number">{trans.__('rank')}</th>
            <th>{trans.__('GPU')}</th>
            <th>{trans.__('NIC')}</th>
          </tr>
        </thead>
        <tbody>
          {some.shown.map(rank => (
            <tr key={rank.rank}>
              <td className="jp-gw-mod-number">{rank.rank}</td>
              <td>
                <Text value={rank.gpu} />
              </td>
              <td>
                <Text value={rank.nic} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <More some={some} what={trans.__('ranks')} trans={trans} />
    </Section>
  );
}

/**
 * The ranks on one GPU of `gpus`. A rank names its GPU by the place among those
 * that can be used, such as `0 (A100-40C)`: a GPU that is cut is used by its parts.
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
