/* eslint-disable jupyter/prefer-lazy-imports -- the renderer is loaded from the start too */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  MainAreaWidget,
  WidgetTracker
} from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';

import { workbenchIcon } from '../panel/icons';
import { CommandIDs, IWorkbench } from '../tokens';
import { LiveTab } from './tab';

const ARGUMENTS = {
  args: { type: 'object', properties: { path: { type: 'string' } } }
};

export const liveTab: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:live-tab',
  description: 'Opens the live view of a notebook in a tab of its own.',
  autoStart: true,
  requires: [IWorkbench, INotebookTracker],
  optional: [ICommandPalette, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const { cluster } = workbench;
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    const tabs = new WidgetTracker<MainAreaWidget<LiveTab>>({
      namespace: 'gradient-workbench-live'
    });
    const create = (panel: NotebookPanel): MainAreaWidget<LiveTab> => {
      const { context } = panel;
      const content = new LiveTab({
        path: context.path,
        session: panel.sessionContext,
        linkOf: session => cluster.linkOf(session),
        serverSettings: app.serviceManager.serverSettings,
        translate: trans
      });
      const tab = new MainAreaWidget({ content });
      tab.id = `gradient-workbench-live-${UUID.uuid4()}`;
      const name = (): void => {
        tab.title.label = trans.__('Live: %1', PathExt.basename(context.path));
        tab.title.caption = trans.__('Live view of %1', context.path);
      };
      name();
      tab.title.icon = workbenchIcon;
      tab.title.closable = true;
      const follow = (): void => {
        content.path = context.path;
        name();
        void tabs.save(tab);
      };
      context.pathChanged.connect(follow);
      tab.disposed.connect(() => context.pathChanged.disconnect(follow));
      panel.disposed.connect(() => tab.dispose());
      void tabs.add(tab);
      return tab;
    };
    app.commands.addCommand(CommandIDs.openLive, {
      label: trans.__('Open Live View'),
      caption: trans.__('Open the live view of this notebook in a tab'),
      icon: workbenchIcon,
      describedBy: ARGUMENTS,
      isEnabled: () => notebooks.currentWidget !== null,
      execute: async ({ path }) => {
        const panel = path
          ? notebooks.find(one => one.context.path === path)
          : notebooks.currentWidget;
        if (!panel) {
          return;
        }
        const tab =
          tabs.find(one => one.content.path === panel.context.path) ??
          create(panel);
        if (!tab.isAttached) {
          app.shell.add(tab, 'main', { mode: 'split-right', ref: panel.id });
        }
        app.shell.activateById(tab.id);
      }
    });
    palette?.addItem({
      command: CommandIDs.openLive,
      category: trans.__('Gradient Workbench')
    });
    if (restorer) {
      void restorer.restore(tabs, {
        command: CommandIDs.openLive,
        args: tab => ({ path: tab.content.path }),
        name: tab => tab.content.path,
        when: notebooks.restored
      });
    }
  }
};
