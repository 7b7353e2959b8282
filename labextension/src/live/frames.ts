/**
 * When to draw: at most once per animation frame, and only while visible.
 */
export class FrameScheduler {
  constructor(private _draw: () => void) {}

  /** Draw at the next animation frame, or as soon as the view is visible. */
  request(): void {
    if (this._frame || this._isDisposed) {
      return;
    }
    if (!this._isVisible) {
      this._isStale = true;
      return;
    }
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._draw();
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
  }

  private _frame = 0;
  private _isVisible = true;
  private _isStale = false;
  private _isDisposed = false;
}
