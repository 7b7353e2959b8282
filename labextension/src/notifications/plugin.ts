/* eslint-disable jupyter/prefer-lazy-imports -- small, and used when the plugin is activated */
import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, IWorkbench } from '../tokens';
import { Failures } from './failures';

export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:notifications',
  description: 'Notifies of failures of a cluster while the panel is hidden.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    translator: ITranslator | null
  ): void => {
    const { cluster, panel } = workbench;
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    const failures = new Failures();
    cluster.followAlways();
    cluster.linkChanged.connect((_, link) => {
      const failure = failures.check(link);
      if (!failure || panel.isVisible) {
        return;
      }
      const show = {
        label: trans.__('Show panel'),
        callback: () => void app.commands.execute(CommandIDs.openPanel)
      };
      const restart = {
        label: trans.__('Restart lost ranks'),
        displayType: 'accent' as const,
        callback: () => void link.restart()
      };
      Notification.error(failure.text, {
        autoClose: false,
        actions: failure.kind === 'cluster' ? [restart, show] : [show]
      });
    });
  }
};
