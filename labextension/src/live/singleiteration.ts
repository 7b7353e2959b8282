/**
 * The column of one iteration, or of a selection: a bar per rank, and all
 * figures.
 */

import { element } from './dom';
import { Focus } from './focus';
import { RankBars } from './rankbars';
import { ofIteration } from './reading';
import { describe, Readout, ReadoutTitle } from './readout';
import { TimingStore } from './store';
import { ITranslate } from '../common/translate';
import { ITheme } from './theme';

export class SingleIterationChart {
  constructor(
    private _trans: ITranslate,
    theme: ITheme
  ) {
    this._bars = new RankBars(theme, _trans);
    this._readout = new Readout(_trans);
    this.node.append(this._title.node, this._bars.node, this._readout.node);
  }

  readonly node = element('div', 'jp-gw-Live-single');

  setTheme(theme: ITheme): void {
    this._bars.setTheme(theme);
  }

  setSize(width: number, height: number): void {
    this._bars.setSize(width, height);
  }

  /**
   * Draw the iteration under the cursor, or else the selection, or else `latest`.
   *
   * @param hovered - the iteration under the cursor.
   * @param row - the selected rank, null for the mean of all.
   */
  draw(
    store: TimingStore,
    focus: Focus,
    hovered: number | null,
    latest: number,
    row: number | null
  ): void {
    const selected = hovered === null ? focus.selected : null;
    const last = selected?.last ?? hovered ?? latest;
    const reading = selected ? focus.reading : ofIteration(store, last);
    if (!reading) {
      return;
    }
    const name = this._title.update(
      this._trans,
      selected?.first ?? last,
      last,
      !selected && last >= store.lastWhole,
      store.leftOut(last)
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
