import { IStateDB } from '@jupyterlab/statedb';
import { ISignal, Signal } from '@lumino/signaling';

import { EMPTY, IDraft, readDraft } from './fields';

const KEY = 'gradient-workbench:start';

/** The content of the form; what was started last is stored in JupyterLab's state. */
export class LastUsed {
  /** `state`: `null` if the front end stores none. */
  constructor(state: IStateDB | null) {
    this._state = state;
    void this._load();
  }

  get draft(): IDraft {
    return this._draft;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  set(change: Partial<IDraft>): void {
    this._isEdited = true;
    this._draft = { ...this._draft, ...change };
    this._changed.emit();
  }

  /** Store the draft, because it was used. */
  async save(): Promise<void> {
    try {
      await this._state?.save(KEY, { ...this._draft });
    } catch (error) {
      console.warn('gradient-workbench: the last start was not stored', error);
    }
  }

  private async _load(): Promise<void> {
    try {
      const saved = await this._state?.fetch(KEY);
      if (saved !== undefined && !this._isEdited) {
        this._draft = readDraft(saved);
        this._changed.emit();
      }
    } catch (error) {
      console.warn('gradient-workbench: the last start was not read', error);
    }
  }

  private _state: IStateDB | null;
  private _isEdited = false;
  private _draft = EMPTY;
  private _changed = new Signal<this, void>(this);
}
