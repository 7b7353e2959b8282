/**
 * The column of one iteration, or of a marked stretch: a bar per rank, and all
 * figures.
 */

import { element } from './dom';
import { Focus } from './focus';
import { RankBars } from './rankbars';
import { ofIteration } from './reading';
import { describe, Readout, ReadoutTitle } from './readout';
import { TimingStore } from './store';
import { ITranslate } from './text';
import { ITheme } from './theme';

export class OneColumn {
  constructor(
    private _trans: ITranslate,
    theme: ITheme
  ) {
    this._bars = new RankBars(theme);
    this._readout = new Readout(_trans);
    this.node.append(this._title.node, this._bars.node, this._readout.node);
  }

  readonly node = element('div', 'gw-live-one');

  setTheme(theme: ITheme): void {
    this._bars.setTheme(theme);
  }

  setSize(width: number, height: number): void {
    this._bars.setSize(width, height);
  }

  /**
   * Draw the iteration under the cursor, else the marked stretch, else `latest`.
   *
   * @param hovered - the iteration under the cursor.
   * @param row - the rank that is looked at, null for the mean of all.
   */
  draw(
    store: TimingStore,
    focus: Focus,
    hovered: number | null,
    latest: number,
    row: number | null
  ): void {
    const marked = hovered === null ? focus.marked : null;
    const last = marked?.last ?? hovered ?? latest;
    const reading = marked ? focus.reading : ofIteration(store, last);
    if (!reading) {
      return;
    }
    const name = this._title.update(
      this._trans,
      marked?.first ?? last,
      last,
      !marked && last >= store.lastWhole
    );
    this._bars.draw(store.ranks, reading, row);
    this._bars.node.setAttribute(
      'aria-label',
      describe(this._trans, name, reading, row)
    );
    this._readout.update(store.ranks, reading, row);
  }

  private _bars: RankBars;
  private _readout: Readout;
  private _title = new ReadoutTitle();
}
