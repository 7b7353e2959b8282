/**
 * The figures around the charts: of the newest iterations, or of those selected.
 */

import { CollectiveTable } from './collectivetable';
import { Focus } from './focus';
import { KeyFiguresBar } from './keyfigures';
import { IRange, Mode } from './range';
import { StageTable } from './stagetable';
import { IStatusActions, StatusLine } from './statusline';
import { ITranslate } from '../common/translate';

export class Figures {
  constructor(
    private _focus: Focus,
    trans: ITranslate,
    actions: IStatusActions
  ) {
    this.keyFigures = new KeyFiguresBar(trans);
    this.statusLine = new StatusLine(trans, actions);
    this.table = new CollectiveTable(trans);
    this.stages = new StageTable(trans);
  }

  readonly keyFigures: KeyFiguresBar;
  readonly statusLine: StatusLine;
  readonly table: CollectiveTable;
  readonly stages: StageTable;

  /**
   * Show the figures of the selected range, or else of the newest
   * iterations. A paused view keeps its figures.
   */
  update(range: IRange, mode: Mode, latest: number): void {
    this._focus.set(mode === 'select' ? range : null);
    if (mode === 'pause') {
      return;
    }
    const { selected, summary, stragglers, collectives, scope } = this._focus;
    this.keyFigures.update(summary, selected?.first ?? null);
    this.statusLine.update(selected, stragglers[0] ?? null, latest);
    this.table.update(collectives, scope);
    this.stages.update(this._focus.stages);
  }
}
