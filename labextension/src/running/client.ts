import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ENGLISH, ITranslate } from '../common/translate';
import {
  Infer,
  list,
  nullable,
  number,
  oneOf,
  record,
  string
} from '../schema/reader';

const CLUSTERS = 'workbench/api/clusters';

const cluster = record({
  name: string,
  /** `kept`: without a process; `held`: by one that is no listed kernel. */
  state: oneOf(
    'starting',
    'ready',
    'running',
    'stopping',
    'failed',
    'kept',
    'held'
  ),
  message: string,
  /** 0 if it is not known yet. */
  ranks: number,
  vms: list(string),
  /** How long it outlives its kernel, in seconds. */
  keep_s: nullable(number),
  kernel_id: nullable(string),
  /** The process of a held cluster. */
  pid: nullable(number)
});

const readAnswer = record({ clusters: list(cluster) });

/** A cluster of a kernel of this user on the server's VM, or one that is kept. */
export type IListedCluster = Infer<typeof cluster>;

/** The server's list of clusters. */
export class ClustersClient {
  constructor(settings: ServerConnection.ISettings, trans?: ITranslate) {
    this._settings = settings;
    this._trans = trans ?? ENGLISH;
  }

  async list(): Promise<readonly IListedCluster[]> {
    const response = await this._request('', 'GET');
    const answer: unknown = await response.json();
    return readAnswer(answer, 'answer', this._trans).clusters;
  }

  /** Stop a cluster that is kept without a kernel; return when it has ended. */
  async stopKept(name: string): Promise<void> {
    await this._request(encodeURIComponent(name), 'DELETE');
  }

  private async _request(name: string, method: string): Promise<Response> {
    const response = await ServerConnection.makeRequest(
      URLExt.join(this._settings.baseUrl, CLUSTERS, name),
      { method },
      this._settings
    );
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
    return response;
  }

  private _settings: ServerConnection.ISettings;
  private _trans: ITranslate;
}
