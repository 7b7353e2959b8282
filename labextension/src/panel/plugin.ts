/* eslint-disable jupyter/prefer-lazy-imports -- the panel is in the sidebar from the start */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';
import { fileUploadIcon } from '@jupyterlab/ui-components';

import { ClusterModel } from '../cluster/model';
import { liveUrl, ResourcesClient } from '../resources/client';
import { FileShelf } from '../resources/files';
import { LiveFeed } from '../resources/livefeed';
import { ResourcesModel } from '../resources/model';
import { CommandIDs, IWorkbench } from '../tokens';
import { chooseFiles } from './filedrop';
import { chooseHostFile } from './hostfile';
import { workbenchIcon } from './icons';
import { WorkbenchPanel } from './panel';
import { followSettings } from './settings';

/** Also the name of its schema. */
const ID = 'gradient-workbench:panel';

/** A command of JupyterLab. */
const OPEN_SETTINGS = 'settingeditor:open';

/** After the built-in tabs: files, running, table of contents. */
const RANK = 350;

export const workbenchPanel: JupyterFrontEndPlugin<IWorkbench> = {
  id: ID,
  description:
    'Shows the resources of this machine and the cluster of the notebook in front.',
  autoStart: true,
  provides: IWorkbench,
  optional: [
    INotebookTracker,
    ICommandPalette,
    ILayoutRestorer,
    ITranslator,
    ISettingRegistry,
    IStateDB,
    IDocumentManager
  ],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null,
    settings: ISettingRegistry | null,
    state: IStateDB | null,
    documents: IDocumentManager | null
  ): IWorkbench => {
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    const { serverSettings } = app.serviceManager;
    const cluster = new ClusterModel({
      tracker,
      state,
      chooseFile: documents
        ? () => chooseHostFile(documents, trans, translator)
        : undefined,
      trans
    });
    const resources = new ResourcesModel({
      client: new ResourcesClient({ serverSettings, trans }),
      feed: new LiveFeed({
        connect: () => new serverSettings.WebSocket(liveUrl(serverSettings)),
        trans
      }),
      cluster,
      state
    });
    const panel = new WorkbenchPanel({
      cluster,
      resources,
      openFile: () => void app.commands.execute(CommandIDs.openFile),
      openSettings: settings
        ? () => {
            void app.commands.execute(OPEN_SETTINGS, {
              query: 'Gradient Workbench'
            });
          }
        : undefined,
      trans
    });
    if (settings) {
      void followSettings(settings, ID, preferences => {
        resources.preferences = preferences;
      });
    }
    panel.title.icon = workbenchIcon;
    panel.title.caption = trans.__('Gradient Workbench: resources and ranks');
    app.shell.add(panel, 'left', { rank: RANK, type: 'Gradient Workbench' });
    restorer?.add(panel, panel.id);
    addCommands(app, palette, panel, resources.files, trans);
    return { cluster, resources, panel };
  }
};

function addCommands(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  panel: WorkbenchPanel,
  files: FileShelf,
  trans: TranslationBundle
): void {
  app.commands.addCommand(CommandIDs.openPanel, {
    label: trans.__('Show Resources and Ranks'),
    caption: trans.__(
      'Open the panel of Gradient Workbench in the left sidebar'
    ),
    icon: workbenchIcon,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => app.shell.activateById(panel.id)
  });
  app.commands.addCommand(CommandIDs.openFile, {
    label: trans.__('Open Topology or Snapshot File…'),
    caption: trans.__(
      'Show the machine that an NCCL topology file or a saved snapshot describes'
    ),
    icon: fileUploadIcon,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      app.shell.activateById(panel.id);
      for (const file of await chooseFiles()) {
        await files.open(file);
      }
    }
  });
  for (const command of [CommandIDs.openPanel, CommandIDs.openFile]) {
    palette?.addItem({
      command,
      category: trans.__('Gradient Workbench')
    });
  }
}
