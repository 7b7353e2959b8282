import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { FILE_MIME_TYPE, FileLink } from './renderer';

/** Takes precedence over the path as text, for other front ends. */
const RANK = -20;

export const fileLinks: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:files',
  description:
    'Draws links to evidence bundles and traces of profiles in outputs.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    translator: ITranslator | null
  ): void => {
    const { serverSettings } = app.serviceManager;
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    rendermime.addFactory(
      {
        safe: true, // the data is never used as HTML
        mimeTypes: [FILE_MIME_TYPE],
        createRenderer: () => new FileLink(serverSettings, trans)
      },
      RANK
    );
  }
};
