/* eslint-disable jupyter/prefer-lazy-imports -- small, and used when the plugin is activated */
import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, IWorkbench } from '../tokens';
import { addClusterCommands } from './cluster';
import { addNotebookCommands } from './notebook';

/** The menu and the notebook's toolbar are in its schema. */
export const commands: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:commands',
  description: 'Adds the commands of the panel to palette, menu and toolbar.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [INotebookTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const { cluster } = workbench;
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    cluster.followAlways();
    addClusterCommands(app.commands, cluster, trans);
    addNotebookCommands(app, tracker, trans);
    cluster.stateChanged.connect(() => {
      app.commands.notifyCommandChanged();
    });
    const category = trans.__('Gradient Workbench');
    for (const command of [
      CommandIDs.start,
      CommandIDs.stop,
      CommandIDs.restart,
      CommandIDs.resize,
      CommandIDs.calibrate,
      CommandIDs.toggleDistributed,
      CommandIDs.defaultLayout
    ]) {
      palette?.addItem({ command, category });
    }
  }
};
