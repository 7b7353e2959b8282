import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';

const panel: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:panel',
  description: 'The resources and the cluster in the left sidebar.',
  autoStart: true,
  activate: (app: JupyterFrontEnd): void => undefined
};

export default [panel];
