import { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import React from 'react';

import { RankTable } from '../common/ranktable';
import { ClusterState, ICluster, IRank } from '../schema/cluster';
import { Controls } from './controls';
import { KernelLink } from './link';
import { ClusterModel } from './model';
import { StartForm } from './startform';

const MAX_RANKS = 1024;

/** Rows listed at a time. */
const MAX_ROWS = 128;

/** With more ranks the table scrolls, and must be reachable by keyboard. */
const FIT = 7;

/** The cluster of the active notebook: its state, its ranks, and what can be done with it. */
export class ClusterView extends VDomRenderer<ClusterModel> {
  constructor(model: ClusterModel, trans: TranslationBundle) {
    super(model);
    this._trans = trans;
    this.addClass('jp-gw-Cluster');
  }

  protected render(): JSX.Element {
    const { link, notebook } = this.model;
    const trans = this._trans;
    return (
      <section aria-label={trans.__('Cluster of the notebook in front')}>
        <h3 className="jp-gw-Heading">
          <span>{trans.__('This notebook')}</span>
          <span className="jp-gw-Heading-detail" title={notebook}>
            {notebook}
          </span>
        </h3>
        {link && link.state.language === 'python' ? (
          <Linked
            key={link.kernel.id}
            link={link}
            model={this.model}
            trans={trans}
          />
        ) : (
          <p className="jp-gw-Note">{this._whyNot()}</p>
        )}
      </section>
    );
  }

  private _whyNot(): string {
    const trans = this._trans;
    switch (this.model.situation) {
      case 'no-notebook':
        return trans.__(
          'No notebook is open. Open one to start ranks from here.'
        );
      case 'connecting':
        return trans.__('Waiting for the kernel of this notebook…');
      case 'no-kernel':
        return trans.__(
          'This notebook has no kernel. Choose one to start ranks from here.'
        );
      case 'elsewhere':
        return trans.__(
          'Another view (a console, say) has the messages of this kernel. Close it, or use %cluster.'
        );
      case 'linked':
        return trans.__(
          'The kernel of this notebook runs %1; ranks need a Python kernel.',
          this.model.link?.state.language
        );
    }
  }

  private _trans: TranslationBundle;
}

function Linked(props: {
  link: KernelLink;
  model: ClusterModel;
  trans: TranslationBundle;
}): JSX.Element {
  const { link, model, trans } = props;
  const { cluster, error, pending } = link.state;
  const up = cluster !== null && cluster.state !== 'stopped';
  return (
    <>
      <Status cluster={cluster} pending={pending} trans={trans} />
      {up ? (
        <Controls
          cluster={cluster}
          link={link}
          onInsert={source => void model.insertCell(source)}
          trans={trans}
        />
      ) : (
        <StartForm
          lastUsed={model.lastUsed}
          disabled={pending !== null}
          onStart={options => void link.start(options)}
          onChoose={model.chooseHostFile}
          trans={trans}
        />
      )}
      {error && !Private.isShown(error, cluster) && (
        <p className="jp-gw-Note jp-gw-mod-error" role="alert">
          {error}
        </p>
      )}
      {up && <Ranks ranks={Private.rows(cluster, trans)} trans={trans} />}
    </>
  );
}

function Status(props: {
  cluster: ICluster | null;
  pending: KernelLink.Pending;
  trans: TranslationBundle;
}): JSX.Element {
  const { cluster, pending, trans } = props;
  const state = pending ? Private.COMING[pending] : cluster?.state;
  if (!state) {
    return <p className="jp-gw-Note">{trans.__('No cluster.')}</p>;
  }
  const detail = pending
    ? trans.__('requested; waiting for the kernel')
    : cluster?.message || cluster?.name;
  return (
    <div className="jp-gw-Status" role="status">
      <span className={`jp-gw-State jp-gw-mod-${state}`}>
        {Private.word(state, trans)}
      </span>
      <span>
        {cluster &&
          state !== 'stopped' &&
          cluster.n > 0 &&
          trans._n('%1 rank', '%1 ranks', cluster.n)}
      </span>
      <span className={`jp-gw-Status-detail jp-gw-mod-${state}`} title={detail}>
        {detail}
      </span>
    </div>
  );
}

function Ranks(props: {
  ranks: readonly IRank[];
  trans: TranslationBundle;
}): JSX.Element {
  const { ranks, trans } = props;
  return (
    <div className="jp-gw-Ranks" tabIndex={ranks.length > FIT ? 0 : -1}>
      <RankTable
        ranks={ranks}
        columns={['vm', 'pid', 'gpu', 'nic', 'state']}
        first={MAX_ROWS}
        label={trans.__('Ranks')}
        trans={trans}
      />
    </div>
  );
}

namespace Private {
  /** The state that a request leads to. */
  export const COMING: Record<NonNullable<KernelLink.Pending>, ClusterState> = {
    start: 'starting',
    restart: 'starting',
    resize: 'starting',
    calibrate: 'running',
    stop: 'stopping'
  };

  /** Return a row for each rank from the start, so that nothing moves when they start. */
  export function rows(
    cluster: ICluster,
    trans: TranslationBundle
  ): readonly IRank[] {
    if (cluster.ranks.length > 0) {
      return cluster.ranks;
    }
    const coming = { unknown: trans.__('this rank has not started yet') };
    const length = Math.min(cluster.n, MAX_RANKS);
    return Array.from({ length }, (_, rank) => ({
      rank,
      vm: coming,
      pid: coming,
      gpu: coming,
      nic: coming,
      state: cluster.state
    }));
  }

  /** Whether the cluster's own message has the same text. */
  export function isShown(error: string, cluster: ICluster | null): boolean {
    return cluster !== null && cluster.message.includes(error.split('\n')[0]);
  }

  export function word(state: ClusterState, trans: TranslationBundle): string {
    const words: Record<ClusterState, string> = {
      starting: trans.__('starting'),
      ready: trans.__('ready'),
      running: trans.__('running'),
      stopping: trans.__('stopping'),
      stopped: trans.__('stopped'),
      failed: trans.__('failed')
    };
    return words[state];
  }
}
