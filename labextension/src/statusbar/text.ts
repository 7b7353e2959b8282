import { TranslationBundle } from '@jupyterlab/translation';

import { KernelLink } from '../cluster/link';
import { ICluster } from '../schema/cluster';
import { isUnknown } from '../schema/known';

/** What the status bar shows of a cluster. */
export interface IClusterStatus {
  readonly text: string;
  /** Further details on hover. */
  readonly title: string;
  readonly isTrouble: boolean;
}

/** `null` if there is no cluster, or it is stopped. */
export function statusOf(
  state: KernelLink.IState | null,
  trans: TranslationBundle
): IClusterStatus | null {
  const cluster = state?.cluster ?? null;
  if (!state || !cluster || cluster.state === 'stopped') {
    return null;
  }
  const name = trans.__('Cluster %1: %2', cluster.name, cluster.state);
  const title = cluster.message ? `${name}. ${cluster.message}` : name;
  if (cluster.state === 'failed') {
    return { text: Private.trouble(cluster, trans), title, isTrouble: true };
  }
  const ranks = trans._n('%1 rank', '%1 ranks', cluster.n);
  if (cluster.state === 'starting' || cluster.state === 'stopping') {
    const text =
      cluster.state === 'starting'
        ? trans.__('%1 · starting', ranks)
        : trans.__('%1 · stopping', ranks);
    return { text, title, isTrouble: false };
  }
  const share = state.exposedShare;
  if (share === null || isUnknown(share)) {
    const why = share
      ? trans.__('Exposed communication: %1.', share.unknown)
      : '';
    return {
      text: ranks,
      title: [title, why].filter(Boolean).join('\n'),
      isTrouble: false
    };
  }
  const percent = Math.round(share * 100);
  return {
    text: trans.__('%1 · %2 % exposed', ranks, percent),
    title: [
      title,
      trans.__('Exposed communication: share of the newest iterations.')
    ].join('\n'),
    isTrouble: false
  };
}

namespace Private {
  export function trouble(cluster: ICluster, trans: TranslationBundle): string {
    const lost = cluster.ranks.filter(rank => rank.state === 'dead');
    if (lost.length === 0) {
      return trans.__('cluster failed');
    }
    return trans._n(
      'rank %2 lost',
      '%1 ranks lost: %2',
      lost.length,
      lost.map(rank => rank.rank).join(', ')
    );
  }
}
