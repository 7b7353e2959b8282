/* eslint-disable jupyter/prefer-lazy-imports -- small, and used when the plugin is activated */
import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import {
  INotebookTracker,
  NotebookActions,
  NotebookPanel
} from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IWorkbench } from '../tokens';
import { ClustersClient, IListedCluster } from './client';
import { RunningClusters } from './manager';
import { stopByKernel } from './stop';

/** A command of JupyterLab. */
const OPEN = 'docmanager:open';

export const runningClusters: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:running',
  description: 'Lists clusters in the Running tab, with attach and stop.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [IRunningSessionManagers, INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    managers: IRunningSessionManagers | null,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ): void => {
    const { cluster: model } = workbench;
    if (!managers) {
      return;
    }
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    const { kernels, serverSettings, sessions } = app.serviceManager;
    const client = new ClustersClient(serverSettings, trans);
    const notebookOf = (cluster: IListedCluster): string =>
      Array.from(sessions.running()).find(
        one => one.kernel?.id === cluster.kernel_id
      )?.path ?? '';
    const onError = (message: string): void => {
      Notification.error(message, { autoClose: false });
    };
    const manager = new RunningClusters({
      list: () => client.list(),
      stop: ({ kernel_id, name, state }) =>
        state === 'kept'
          ? client.stopKept(name)
          : stopByKernel({
              kernelId: kernel_id ?? '',
              kernels,
              model,
              tracker,
              trans
            }),
      attach: name => {
        const panel = tracker?.currentWidget;
        if (panel) {
          void attachIn(panel, name);
        } else {
          onError(trans.__('No notebook is open. Open one to attach.'));
        }
      },
      notebookOf,
      isCurrent: ({ kernel_id }) => model.link?.kernel.id === kernel_id,
      openNotebook: path => void app.commands.execute(OPEN, { path }),
      onError,
      trans
    });
    managers.add(manager);
    model.linkChanged.connect(() => manager.refreshSoon());
  }
};

/** Insert a cell that attaches to a kept cluster, and run it. */
async function attachIn(panel: NotebookPanel, name: string): Promise<void> {
  const { content, sessionContext } = panel;
  NotebookActions.insertBelow(content);
  content.activeCell?.model.sharedModel.setSource(
    `%reload_ext workbench\n%cluster attach --name ${name}`
  );
  await NotebookActions.run(content, sessionContext);
}
