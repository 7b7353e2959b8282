import { IRunningSessions } from '@jupyterlab/running';
import { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';

import { workbenchIcon } from '../panel/icons';
import { IListedCluster } from './client';

const PERIOD_MS = 10_000;
const MAX_PERIOD_MS = 60_000;
const SOON_MS = 1000;

/** The section of clusters in JupyterLab's Running tab. */
export class RunningClusters implements IRunningSessions.IManager, IDisposable {
  constructor(options: RunningClusters.IOptions) {
    this._options = options;
    const { trans } = options;
    this.name = trans.__('Clusters');
    this.shutdownLabel = trans.__('Stop cluster');
    this.shutdownAllLabel = trans.__('Stop All');
    this.shutdownAllConfirmationText = trans.__(
      'Stop all clusters? Their processes end, and the variables of the ranks are lost.'
    );
    this._poll = new Poll({
      name: 'gradient-workbench:clusters',
      factory: () => this._refresh(),
      frequency: { interval: PERIOD_MS, backoff: true, max: MAX_PERIOD_MS },
      standby: 'when-hidden'
    });
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly shutdownItemIcon = closeIcon;

  get runningChanged(): ISignal<this, void> {
    return this._runningChanged;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  running(): IRunningSessions.IRunningItem[] {
    return this._clusters.map(cluster => this._item(cluster));
  }

  refreshRunning(): void {
    void this._poll.refresh();
  }

  /** Refresh after a change of a cluster of this page, whose kernel publishes it then. */
  refreshSoon(): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.refreshRunning(), SOON_MS);
  }

  shutdownAll(): void {
    this._clusters
      .filter(cluster => cluster.state !== 'held')
      .forEach(cluster => void this._stop(cluster));
  }

  dispose(): void {
    clearTimeout(this._timer);
    this._poll.dispose();
    Signal.clearData(this);
  }

  private _item(cluster: IListedCluster): IRunningSessions.IRunningItem {
    const { attach, isCurrent, notebookOf, openNotebook, trans } =
      this._options;
    const notebook = notebookOf(cluster);
    const isHeld = cluster.state === 'held';
    const title = isHeld
      ? trans.__('Stop it in that process, or end the process')
      : cluster.kernel_id === null
        ? trans.__('Attach to %1 in the active notebook', cluster.name)
        : isCurrent(cluster) || !notebook
          ? cluster.name
          : trans.__('Open %1, which has this cluster', notebook);
    return {
      icon: () => workbenchIcon,
      label: () => describe(cluster, notebook, trans),
      labelTitle: () =>
        [title, cluster.vms.join(', '), cluster.message]
          .filter(Boolean)
          .join('\n'),
      open: () => {
        if (cluster.state === 'kept') {
          attach(cluster.name);
        } else if (notebook) {
          openNotebook(notebook);
        }
      },
      // Without it there is no button.
      shutdown: isHeld ? undefined : () => void this._stop(cluster)
    };
  }

  private async _stop(cluster: IListedCluster): Promise<void> {
    try {
      await this._options.stop(cluster);
    } catch (error) {
      this._options.onError((error as Error).message);
    }
    await this._poll.refresh();
  }

  private async _refresh(): Promise<void> {
    const clusters = await this._options.list();
    if (JSON.stringify(clusters) !== JSON.stringify(this._clusters)) {
      this._clusters = clusters;
      this._runningChanged.emit();
    }
  }

  private _options: RunningClusters.IOptions;
  private _poll: Poll;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _clusters: readonly IListedCluster[] = [];
  private _runningChanged = new Signal<this, void>(this);
}

export namespace RunningClusters {
  export interface IOptions {
    list: () => Promise<readonly IListedCluster[]>;
    /** Rejects with the reason if the cluster does not stop. */
    stop: (cluster: IListedCluster) => Promise<void>;
    /** Attach to a kept cluster from the active notebook. */
    attach: (name: string) => void;
    /** The path of the notebook whose kernel has it; empty if there is none. */
    notebookOf: (cluster: IListedCluster) => string;
    /** Whether the active notebook has it. */
    isCurrent: (cluster: IListedCluster) => boolean;
    openNotebook: (path: string) => void;
    onError: (message: string) => void;
    trans: TranslationBundle;
  }
}

/** One line: name, ranks, state, and the notebook. */
export function describe(
  cluster: IListedCluster,
  notebook: string,
  trans: TranslationBundle
): string {
  const ranks = cluster.ranks
    ? trans._n('%1 rank', '%1 ranks', cluster.ranks)
    : trans.__('ranks not known yet');
  const state =
    cluster.state === 'held'
      ? trans.__('in use by process %1', String(cluster.pid))
      : cluster.state === 'kept'
        ? trans.__('kept, no notebook')
        : trans.__(
            '%1 · %2',
            cluster.state,
            notebook || trans.__('no notebook')
          );
  return trans.__('%1 · %2 · %3', cluster.name, ranks, state);
}
