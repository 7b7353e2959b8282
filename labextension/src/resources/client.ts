import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ENGLISH, ITranslate } from '../common/translate';
import {
  IFileAnswer,
  IFinding,
  readFileAnswer,
  readFindingsAnswer
} from '../schema/findings';
import { ISnapshot, readSnapshot } from '../schema/snapshot';

const API = 'workbench/api';

/** The server extension's REST routes. */
export class ResourcesClient {
  constructor(options: ResourcesClient.IOptions) {
    this._settings = options.serverSettings;
    this._trans = options.trans ?? ENGLISH;
  }

  async snapshot(): Promise<ISnapshot> {
    const answer = await this._get('snapshot');
    return readSnapshot(answer, 'snapshot', this._trans);
  }

  async findings(): Promise<readonly IFinding[]> {
    const answer = await this._get('findings');
    return readFindingsAnswer(answer, 'answer', this._trans).findings;
  }

  /** Let the server read a file's text: an NCCL topology file or a snapshot. */
  async read(name: string, text: string): Promise<IFileAnswer> {
    const route = `read?name=${encodeURIComponent(name)}`;
    const answer = await this._ask(route, { method: 'POST', body: text });
    return readFileAnswer(answer, 'answer', this._trans);
  }

  private _get(name: string): Promise<unknown> {
    return this._ask(name, {});
  }

  private async _ask(route: string, request: RequestInit): Promise<unknown> {
    const url = URLExt.join(this._settings.baseUrl, API, route);
    const response = await ServerConnection.makeRequest(
      url,
      request,
      this._settings
    );
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
    return response.json();
  }

  private _settings: ServerConnection.ISettings;
  private _trans: ITranslate;
}

export namespace ResourcesClient {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
    trans?: ITranslate;
  }
}

/** The URL of the live feed, with the token, which a browser cannot send as a header. */
export function liveUrl(settings: ServerConnection.ISettings): string {
  const url = URLExt.join(settings.wsUrl, API, 'live');
  return settings.appendToken && settings.token
    ? `${url}?token=${encodeURIComponent(settings.token)}`
    : url;
}
