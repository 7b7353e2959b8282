import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';
import { Widget } from '@lumino/widgets';

import { fileUrl } from '../common/fileurl';
import { IRunFile } from '../common/runfile';
import { ITranslate } from '../common/translate';

/** The MIME type of a link to a file of a run. */
export const FILE_MIME_TYPE = 'application/vnd.gradient-workbench.file+json';

/** A link that downloads a file of a run, in the output of a cell. */
export class FileLink extends Widget implements IRenderMime.IRenderer {
  constructor(settings: ServerConnection.ISettings, trans: ITranslate) {
    super();
    this._settings = settings;
    this._trans = trans;
    this.addClass('jp-RenderedText');
    this.addClass('jp-gw-File');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data = (model.data[FILE_MIME_TYPE] ?? {}) as Partial<IData>;
    const { run = '', file = '', text = '' } = data;
    const url = fileUrl(this._settings, { run, file });
    const nodes: HTMLElement[] = [];
    const add = (tag: 'pre' | 'a', content: string): HTMLElement => {
      const node = document.createElement(tag);
      node.textContent = content;
      nodes.push(node);
      return node;
    };
    if (text) {
      add('pre', String(text));
    }
    if (url === null) {
      add('pre', this._trans.__('This output names no file.'));
    } else {
      const link = add('a', this._trans.__('Download %1', file));
      link.setAttribute('href', url);
      link.setAttribute('download', file);
    }
    this.node.replaceChildren(...nodes);
  }

  private _settings: ServerConnection.ISettings;
  private _trans: ITranslate;
}

/** What the kernel sends. */
interface IData extends IRunFile {
  /** Shown above the link; may be empty. */
  text: string;
}
