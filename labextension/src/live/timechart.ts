/**
 * Base class of the charts over time: a plot of the drawn iterations, in a theme.
 */

import uPlot from 'uplot';

import { IGestures, IPlotOptions, IScene, makePlot, middles } from './plot';
import { ITheme } from './theme';

/** The parent of a chart, and objects shared with the others. */
export interface IPlace {
  host: HTMLElement;
  sync: string;
  theme: ITheme;
  gestures: IGestures;
}

/** One value per span for uPlot; null is a gap. */
export type ValuesOfSpans = (number | null)[];

/** A chart over iterations. */
export abstract class TimeChart {
  constructor(theme: ITheme) {
    this._theme = theme;
  }

  abstract readonly plot: uPlot;

  setSize(width: number, height: number): void {
    this.plot.setSize({ width, height });
  }

  /** Use another theme from the next drawing on. */
  setTheme(theme: ITheme): void {
    this._theme = theme;
  }

  draw(scene: IScene): void {
    [this._from, this._to] = [scene.from, scene.to];
    this.plot.setData([
      middles(scene.columns),
      ...this._values(scene)
    ] as uPlot.AlignedData);
  }

  dispose(): void {
    this.plot.destroy();
  }

  /** Set what is drawn; return the values of each series. */
  protected abstract _values(scene: IScene): ValuesOfSpans[];

  protected _makePlot(
    place: IPlace,
    own: Pick<IPlotOptions, 'bottomAxis' | 'y' | 'yScale' | 'series' | 'draw'>
  ): uPlot {
    return makePlot({
      ...place,
      ...own,
      theme: () => this._theme,
      range: () => [this._from - 0.5, this._to - 0.5]
    });
  }

  protected _theme: ITheme;
  private _from = 0;
  private _to = 1;
}
