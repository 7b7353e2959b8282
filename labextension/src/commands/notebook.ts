import { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker, Notebook } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';

import { distributedIcon } from '../panel/icons';
import { CommandIDs } from '../tokens';
import { distributedEdit, hasOtherMagic, isDistributed } from './distributed';

const NONE = { args: { type: 'object', properties: {} } };

/** The commands about the active notebook's cells, and the layout around it. */
export function addNotebookCommands(
  app: JupyterFrontEnd,
  tracker: INotebookTracker | null,
  trans: TranslationBundle
): void {
  const { commands } = app;
  const hasNotebook = (): boolean => Boolean(tracker?.currentWidget);
  commands.addCommand(CommandIDs.toggleDistributed, {
    label: trans.__('Toggle Distributed Cell'),
    caption: trans.__('Run the selected cells on the ranks, or no longer'),
    icon: distributedIcon,
    describedBy: NONE,
    isEnabled: hasNotebook,
    execute: () => {
      const content = tracker?.currentWidget?.content;
      if (content && toggle(content) === 'other-magic') {
        Notification.warning(
          trans.__(
            'The cell has another cell magic. Remove it to run the cell on the ranks.'
          ),
          { autoClose: 5000 }
        );
      }
    }
  });
  commands.addCommand(CommandIDs.defaultLayout, {
    label: trans.__('Arrange Panel, Notebook and Live View'),
    describedBy: NONE,
    isEnabled: hasNotebook,
    execute: async () => {
      const notebook = tracker?.currentWidget;
      await commands.execute(CommandIDs.openPanel);
      await commands.execute(CommandIDs.openLive);
      if (notebook) {
        app.shell.activateById(notebook.id);
      }
    }
  });
  tracker?.currentChanged.connect(() => {
    commands.notifyCommandChanged(CommandIDs.toggleDistributed);
    commands.notifyCommandChanged(CommandIDs.defaultLayout);
  });
}

/** Add the magic to the selected code cells, or remove it if all of them have it. */
function toggle(notebook: Notebook): 'done' | 'other-magic' {
  const models = notebook.widgets
    .filter(cell => notebook.isSelectedOrActive(cell))
    .map(cell => cell.model)
    .filter(model => model.type === 'code')
    .map(model => model.sharedModel);
  const on = !models.every(model => isDistributed(model.source));
  for (const model of models) {
    const edit = distributedEdit(model.source, on);
    if (edit) {
      model.updateSource(edit.start, edit.end, edit.text);
    }
  }
  const refused = on && models.some(model => hasOtherMagic(model.source));
  return refused ? 'other-magic' : 'done';
}
