import { TranslationBundle } from '@jupyterlab/translation';
import { runIcon, stopIcon, VDomRenderer } from '@jupyterlab/ui-components';
import React, { useId, useState } from 'react';

import { RankTable } from '../common/ranktable';
import { ClusterState, ICluster, IRank } from '../schema/cluster';
import { KernelLink } from './link';
import { ClusterModel } from './model';

const DEFAULT_RANKS = 2;
const MOST_RANKS = 1024;

/** Rows listed at a time. */
const MOST_ROWS = 128;

/** With more ranks the table scrolls, and must be reachable by keyboard. */
const FIT = 7;

/** The cluster of the active notebook: its state, its ranks, start and stop. */
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
          <Linked key={link.kernel.id} link={link} trans={trans} />
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
  trans: TranslationBundle;
}): JSX.Element {
  const { link, trans } = props;
  const { cluster, error, pending } = link.state;
  const up = cluster !== null && cluster.state !== 'stopped';
  return (
    <>
      <Status cluster={cluster} pending={pending} trans={trans} />
      <Controls
        canStart={!up && pending === null}
        canStop={up && cluster.state !== 'stopping' && pending === null}
        ranks={up ? cluster.n || null : null}
        onStart={ranks => void link.start({ ranks })}
        onStop={() => void link.stop()}
        trans={trans}
      />
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
  const state =
    pending === 'start'
      ? 'starting'
      : pending === 'stop'
        ? 'stopping'
        : cluster?.state;
  if (!state) {
    return (
      <p className="jp-gw-Note">
        {trans.__(
          'No cluster. Ranks started here are Horovod ranks on this machine.'
        )}
      </p>
    );
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

interface IControlsProps {
  canStart: boolean;
  canStop: boolean;
  /** The size of the running cluster; `null` if the user chooses. */
  ranks: number | null;
  onStart: (n: number) => void;
  onStop: () => void;
  trans: TranslationBundle;
}

function Controls(props: IControlsProps): JSX.Element {
  const { trans } = props;
  const [n, setN] = useState(String(DEFAULT_RANKS));
  const id = useId();
  const valid = /^\d+$/.test(n) && Number(n) >= 1 && Number(n) <= MOST_RANKS;
  return (
    <form
      className="jp-gw-Controls"
      onSubmit={event => {
        event.preventDefault();
        props.onStart(Number(n));
      }}
    >
      <label htmlFor={id}>{trans.__('Ranks')}</label>
      <input
        id={id}
        className="jp-gw-Controls-ranks"
        type="number"
        min={1}
        max={MOST_RANKS}
        value={props.ranks ?? n}
        aria-invalid={!valid}
        disabled={!props.canStart}
        onChange={event => setN(event.target.value)}
      />
      <button
        type="submit"
        className="jp-gw-Button"
        disabled={!props.canStart || !valid}
      >
        <runIcon.react tag="span" aria-hidden="true" />
        {trans.__('Start')}
      </button>
      <button
        type="button"
        className="jp-gw-Button"
        disabled={!props.canStop}
        onClick={props.onStop}
      >
        <stopIcon.react tag="span" aria-hidden="true" />
        {trans.__('Stop')}
      </button>
    </form>
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
        first={MOST_ROWS}
        label={trans.__('Ranks')}
        trans={trans}
      />
    </div>
  );
}

namespace Private {
  /** Return a row for each rank from the start, so that nothing moves when they start. */
  export function rows(
    cluster: ICluster,
    trans: TranslationBundle
  ): readonly IRank[] {
    if (cluster.ranks.length > 0) {
      return cluster.ranks;
    }
    const coming = { unknown: trans.__('this rank has not started yet') };
    const length = Math.min(cluster.n, MOST_RANKS);
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
