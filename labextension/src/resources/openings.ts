import { IStateDB } from '@jupyterlab/statedb';
import { ISignal, Signal } from '@lumino/signaling';

const KEY = 'gradient-workbench:open';

/** Prefix of the cards of files, which are lost with the page. */
const PASSING = 'file/';

/** Most cards and sections whose state is stored; the oldest are dropped. */
const MAX_OPEN = 500;

/**
 * What the user opened and closed, by name; stored in JupyterLab's state, so that it
 * survives a reload of the page.
 */
export class Openings {
  /** `state`: `null` if the front end stores none. */
  constructor(state: IStateDB | null) {
    this._state = state;
    void this._load();
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** `undefined` if the user has not chosen. */
  get(name: string): boolean | undefined {
    return this._open.get(name);
  }

  set(name: string, open: boolean): void {
    this._open.delete(name);
    this._open.set(name, open);
    for (const oldest of this._open.keys()) {
      if (this._open.size <= MAX_OPEN) {
        break;
      }
      this._open.delete(oldest);
    }
    this._changed.emit();
    this._save();
  }

  private async _load(): Promise<void> {
    try {
      const saved = await this._state?.fetch(KEY);
      for (const [name, open] of Object.entries(saved ?? {})) {
        // Choices since the page was opened are newer.
        if (typeof open === 'boolean' && !this._open.has(name)) {
          this._open.set(name, open);
        }
      }
      this._changed.emit();
    } catch (error) {
      console.warn('gradient-workbench: which cards were open', error);
    }
  }

  private _save(): void {
    const lasting = [...this._open].filter(
      ([name]) => !name.startsWith(PASSING)
    );
    this._state
      ?.save(KEY, Object.fromEntries(lasting))
      .catch(error => console.warn('gradient-workbench: not saved', error));
  }

  private _state: IStateDB | null;
  private _open = new Map<string, boolean>();
  private _changed = new Signal<this, void>(this);
}
