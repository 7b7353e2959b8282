/* eslint-disable jupyter/prefer-lazy-imports -- the panel stands in the sidebar from the start */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { ClusterModel } from '../cluster/model';
import { liveUrl, ResourcesClient } from '../resources/client';
import { LiveFeed } from '../resources/livefeed';
import { ResourcesModel } from '../resources/model';
import { workbenchIcon } from './icons';
import { WorkbenchPanel } from './panel';

namespace CommandIDs {
  export const openPanel = 'workbench:open-panel';
}

/** After Lab's own tabs: files, running, table of contents. */
const RANK = 350;

export const workbenchPanel: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:panel',
  description:
    'Shows the resources of this machine and the cluster of the notebook in front.',
  autoStart: true,
  optional: [INotebookTracker, ICommandPalette, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    const { serverSettings } = app.serviceManager;
    const panel = new WorkbenchPanel({
      cluster: new ClusterModel({ tracker }),
      resources: new ResourcesModel({
        client: new ResourcesClient({ serverSettings }),
        feed: new LiveFeed({
          connect: () => new serverSettings.WebSocket(liveUrl(serverSettings))
        })
      }),
      trans
    });
    panel.title.icon = workbenchIcon;
    panel.title.caption = trans.__('Gradient Workbench: resources and ranks');
    app.shell.add(panel, 'left', { rank: RANK, type: 'Gradient Workbench' });
    restorer?.add(panel, panel.id);
    app.commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show Resources and Ranks'),
      caption: trans.__(
        'Open the panel of Gradient Workbench in the left sidebar'
      ),
      icon: workbenchIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(panel.id)
    });
    palette?.addItem({
      command: CommandIDs.openPanel,
      category: trans.__('Gradient Workbench')
    });
  }
};
