import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { IRunFile } from './runfile';

const RUNS = 'workbench/api/runs';

/** The URL of a file of a run on a server; null if the names are not valid. */
export function fileUrl(
  settings: ServerConnection.ISettings,
  file: IRunFile
): string | null {
  const names = [file.run, file.file];
  const isName = (name: unknown): boolean =>
    typeof name === 'string' && !['', '.', '..'].includes(name);
  if (!names.every(isName)) {
    return null;
  }
  const [run, name] = names.map(encodeURIComponent);
  return URLExt.join(settings.baseUrl, RUNS, run, 'files', name);
}
