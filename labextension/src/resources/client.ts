import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

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
  }

  async snapshot(): Promise<ISnapshot> {
    return readSnapshot(await this._get('snapshot'), 'snapshot');
  }

  async findings(): Promise<readonly IFinding[]> {
    const answer = await this._get('findings');
    return readFindingsAnswer(answer, 'answer').findings;
  }

  /** Have a file's text read: a topology as NCCL takes it, or a snapshot. */
  async read(name: string, text: string): Promise<IFileAnswer> {
    const route = `read?name=${encodeURIComponent(name)}`;
    const answer = await this._ask(route, { method: 'POST', body: text });
    return readFileAnswer(answer, 'answer');
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
}

export namespace ResourcesClient {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
  }
}

/** Where the live feed is, with the token that a browser cannot send as a header. */
export function liveUrl(settings: ServerConnection.ISettings): string {
  const url = URLExt.join(settings.wsUrl, API, 'live');
  return settings.appendToken && settings.token
    ? `${url}?token=${encodeURIComponent(settings.token)}`
    : url;
}
