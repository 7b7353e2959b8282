/**
 * A stored run with whose iteration times those of the view are compared.
 */

import { isUnknown, IUnknown } from '../schema/known';
import { element, keepKeys, setText } from './dom';
import { count, time } from './format';
import { IAnswer, IEarlierRun, Request } from './protocol';
import { ITranslate } from '../common/translate';

/** The names of stored runs, and the chosen one: requested from the kernel. */
export class EarlierRuns {
  /** The names, the newest first; null before the kernel has answered. */
  get names(): readonly string[] | null {
    return this._names;
  }

  /** The name of the chosen run, or null. */
  get chosen(): string | null {
    return this._chosen;
  }

  /** The chosen run, or why it is unknown; null before the kernel has answered. */
  get run(): IEarlierRun | IUnknown | null {
    return this._run;
  }

  /** Set how requests are sent to the kernel; null if they cannot be sent. */
  connect(send: ((request: Request) => void) | null): void {
    this._send = send;
    if (this._run === null) {
      this.choose(this._chosen); // a kernel that has ended answers no more
    }
  }

  /** Whether requests can be sent. */
  get isConnected(): boolean {
    return this._send !== null;
  }

  /** Request the names; the answer is a change. */
  list(): void {
    this._send?.({ type: 'runs' });
  }

  /** Request the times of a run; null chooses none. */
  choose(name: string | null): void {
    this._chosen = name;
    this._run = null;
    if (name !== null) {
      this._send?.({ type: 'earlier', name });
    }
  }

  /** Process an answer, which may be that to another page on the same kernel. */
  take({ asked, runs, earlier }: IAnswer): void {
    this._names = runs ?? this._names;
    if (earlier && asked.type === 'earlier' && asked.name === this._chosen) {
      this._run = earlier;
    }
  }

  private _names: readonly string[] | null = null;
  private _chosen: string | null = null;
  private _run: IEarlierRun | IUnknown | null = null;
  private _send: ((request: Request) => void) | null = null;
}

/** The choice of a stored run. */
export class EarlierChoice {
  constructor(
    private _runs: EarlierRuns,
    private _trans: ITranslate,
    changed: () => void
  ) {
    // The names are requested just before the list opens, by pointer or by key.
    for (const event of ['pointerenter', 'focus']) {
      this.node.addEventListener(event, () => _runs.list());
    }
    this.node.addEventListener('change', () => {
      _runs.choose(this.node.value || null);
      changed();
    });
    keepKeys(this.node);
    this.node.append(new Option(this._trans.__('None'), ''));
  }

  readonly node = element('select', 'jp-gw-Live-select');

  /** Offer the names that the kernel has sent. */
  update(): void {
    const names = this._runs.names ?? [];
    const same = (name: string, place: number): boolean =>
      name === this._shown[place];
    if (names.length === this._shown.length && names.every(same)) {
      return; // an open list stays as it is
    }
    this._shown = names;
    const { chosen } = this._runs;
    const kept = chosen === null || names.includes(chosen) ? [] : [chosen];
    const none = new Option(this._trans.__('None'), '');
    const options = [...kept, ...names].map(name => new Option(name, name));
    this.node.replaceChildren(none, ...options);
    this.node.value = chosen ?? '';
  }

  private _shown: readonly string[] = [];
}

/** The key to the line of the chosen run, or why there is none. */
export class EarlierKey {
  constructor(private _trans: ITranslate) {
    this.node.append(this._stroke, this._text);
    this.node.setAttribute('role', 'status');
    this.node.hidden = true;
  }

  readonly node = element('div', 'jp-gw-Live-earlier');

  update({ chosen, run, isConnected }: EarlierRuns): void {
    this.node.hidden = chosen === null;
    this._stroke.hidden = run === null || isUnknown(run);
    setText(
      this._text,
      chosen === null ? '' : this._describe(run, isConnected)
    );
  }

  private _describe(
    run: IEarlierRun | IUnknown | null,
    isConnected: boolean
  ): string {
    if (run === null && !isConnected) {
      return this._trans.__(
        'No kernel answers. Run the cells above, then try again.'
      );
    }
    if (run === null) {
      return this._trans.__('Waiting for the kernel.');
    }
    if (isUnknown(run)) {
      return run.unknown;
    }
    const { value, unit } = time(run.mean_us);
    return this._trans.__(
      'Iteration time of %1: mean %2, iterations 0 to %3',
      run.name,
      `${value} ${unit}`,
      count(run.iterations - 1)
    );
  }

  private _stroke = element(
    'span',
    'jp-gw-Live-stroke jp-gw-Live-stroke-earlier'
  );
  private _text = element('span', '');
}
