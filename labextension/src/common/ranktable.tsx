import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { IRank } from '../schema/cluster';
import { orElse } from '../schema/known';
import { More, useSome } from './some';
import { Text } from './value';

/** A table of ranks: their numbers, and the chosen columns. */
export function RankTable(props: RankTable.IProps): JSX.Element {
  const { columns, ranks, trans } = props;
  const some = useSome(ranks, props.first);
  const names: Record<RankTable.Column, string> = {
    vm: trans.__('VM'),
    pid: trans.__('PID'),
    gpu: trans.__('GPU'),
    nic: trans.__('NIC'),
    state: trans.__('State')
  };
  return (
    <>
      <table className="jp-gw-Table" aria-label={props.label}>
        <thead>
          <tr>
            <th className="jp-gw-mod-number">{trans.__('Rank')}</th>
            {columns.map(column => (
              <th key={column} className={Private.kind(column)}>
                {names[column]}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {some.shown.map(rank => (
            <tr key={rank.rank}>
              <td className="jp-gw-mod-number">{rank.rank}</td>
              {columns.map(column => (
                <td
                  key={column}
                  className={Private.kind(column)}
                  title={
                    column === 'gpu' ? String(orElse(rank.gpu, '')) : undefined
                  }
                >
                  <Text value={rank[column]} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <More some={some} what={trans.__('ranks')} trans={trans} />
    </>
  );
}

export namespace RankTable {
  export type Column = 'vm' | 'pid' | 'gpu' | 'nic' | 'state';

  export interface IProps {
    ranks: readonly IRank[];
    /** The columns after the rank's number, in order. */
    columns: readonly Column[];
    /** Number of rows that are shown initially. */
    first: number;
    label: string;
    trans: TranslationBundle;
  }
}

namespace Private {
  export function kind(column: RankTable.Column): string | undefined {
    return column === 'pid' ? 'jp-gw-mod-number' : undefined;
  }
}
