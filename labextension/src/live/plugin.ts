/**
 * The entry point for JupyterLab: draws the MIME type of a live view.
 */

import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { MIME_TYPE } from './protocol';
// eslint-disable-next-line jupyter/prefer-lazy-imports -- Lab makes a renderer synchronously
import { ISession, TimingsRenderer } from './renderer';

/** Takes precedence over the widget view (-10) in the same outputs, for other front ends. */
const RANK = -20;

export const timingsRenderer: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:timings',
  description:
    'Draws the live timings of a training in the output of its notebook.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ): void => {
    const { serverSettings } = app.serviceManager;
    const translate = (translator ?? nullTranslator).load('gradient_workbench');
    const findSession = (output: Widget, viewId: string): ISession | null =>
      tracker ? Private.findSession(tracker, output, viewId) : null;
    rendermime.addFactory(
      {
        safe: true, // the data is never used as HTML
        mimeTypes: [MIME_TYPE],
        createRenderer: () =>
          new TimingsRenderer({ serverSettings, translate, findSession })
      },
      RANK
    );
  }
};

namespace Private {
  /** Find it by the page, or by the view's id for an output shown in its own tab. */
  export function findSession(
    tracker: INotebookTracker,
    output: Widget,
    viewId: string
  ): ISession | null {
    const panel =
      tracker.find(one => one.node.contains(output.node)) ??
      tracker.find(one => contains(one, viewId));
    return panel?.sessionContext ?? null;
  }

  function contains(panel: NotebookPanel, viewId: string): boolean {
    const cells = Array.from(panel.content.model?.cells ?? []);
    return cells.some(cell => {
      const outputs = (cell.toJSON().outputs ?? []) as {
        data?: Record<string, { view_id?: string } | undefined>;
      }[];
      return outputs.some(({ data }) => data?.[MIME_TYPE]?.view_id === viewId);
    });
  }
}
