/**
 * The button that profiles the ranks while a cell trains, and a line about the latest profile.
 */

import { element, keepKeys, setText } from './dom';
import { TimingFeed } from './feed';
import { IRunFile } from '../common/runfile';
import { ITranslate } from '../common/translate';

/** Long enough for many iterations; the trace of a profile has at most some megabytes. */
const SECONDS = 5;

export class ProfileLine {
  constructor(
    private _feed: TimingFeed,
    private _trans: ITranslate,
    private _fileUrl: ((file: IRunFile) => string | null) | null = null
  ) {
    this._start.type = 'button';
    setText(this._start, _trans.__('Profile %1 s', SECONDS));
    this._start.title = _trans.__(
      'Record the operators of all ranks with PyTorch’s profiler, as one trace for Perfetto'
    );
    this._start.addEventListener('click', () => _feed.profile(SECONDS));
    this._line.setAttribute('role', 'status');
    keepKeys(this.node);
    setText(this._link, _trans.__('Download'));
    this._link.title = _trans.__('Download the trace of the latest profile');
    this._link.download = '';
    this._link.hidden = true;
    this.node.append(this._start, this._line, this._link);
    this._stop = _feed.onChange(() => this._update());
    this._update();
  }

  readonly node = element('div', 'jp-gw-Live-profile');

  dispose(): void {
    this._stop();
  }

  private _update(): void {
    const { status, profiling } = this._feed;
    this._start.disabled = status.state !== 'running' || profiling === 'asked';
    setText(this._line, this._text());
    this._line.title = this._line.textContent ?? '';
    const file = profiling === null ? status.profile_file : null;
    const url = file ? (this._fileUrl?.(file) ?? null) : null;
    this._link.hidden = url === null;
    if (url !== null) {
      this._link.href = url;
    }
  }

  private _text(): string {
    const { status, profiling, refusal } = this._feed;
    if (profiling === 'asked') {
      return this._trans.__('Waiting for the kernel.');
    }
    if (profiling === 'late') {
      return this._trans.__(
        'The kernel has not answered yet: it may answer at the end of the cell.'
      );
    }
    return refusal || (status.profile ?? '');
  }

  private _start = element('button', 'jp-gw-Live-button');
  private _line = element('span', 'jp-gw-Live-profileText');
  private _link = element('a', 'jp-gw-Live-profileLink');
  private _stop: () => void;
}
