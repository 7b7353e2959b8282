/** Parts that are read as text or bars follow new data only this often. */
const READ_EVERY_MS = 500;

/**
 * When to draw: at most once per animation frame, and only while visible.
 */
export class FrameScheduler {
  /** `draw` receives whether all is drawn, or only the charts over time. */
  constructor(private _draw: (all: boolean) => void) {}

  /**
   * Draw at the next animation frame, or as soon as the view is visible.
   *
   * @param all - draw all parts; without it, some may follow a little later.
   */
  request(all = true): void {
    this._all ||= all;
    if (this._frame || this._isDisposed) {
      return;
    }
    if (!this._isVisible) {
      this._isStale = true;
      return;
    }
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._run();
    });
  }

  set isVisible(visible: boolean) {
    this._isVisible = visible;
    if (visible && this._isStale) {
      this._isStale = false;
      this.request();
    }
  }

  dispose(): void {
    this._isDisposed = true;
    cancelAnimationFrame(this._frame);
    clearTimeout(this._later);
  }

  private _run(): void {
    const now = performance.now();
    const all = this._all || now >= this._due;
    clearTimeout(this._later);
    if (all) {
      this._all = false;
      // Two at once are possible, such as a snapshot and the first message.
      this._due = Math.max(this._due, now - READ_EVERY_MS) + READ_EVERY_MS;
    } else {
      // Usually, newer data is drawn before that.
      this._later = window.setTimeout(() => this.request(), READ_EVERY_MS);
    }
    this._draw(all);
  }

  private _frame = 0;
  private _all = true;
  private _due = -Infinity;
  private _later = 0;
  private _isVisible = true;
  private _isStale = false;
  private _isDisposed = false;
}
