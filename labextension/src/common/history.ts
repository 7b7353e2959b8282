import { isUnknown, Known } from './known';

/** The last minute, at one value per second. */
export const LENGTH = 60;

/**
 * The last values of one series, the newest last.
 *
 * What was not known is kept as a gap (`null`), so that a line shows it as one.
 */
export class History {
  get values(): readonly (number | null)[] {
    return this._values;
  }

  push(value: Known<number>): void {
    this._values.push(isUnknown(value) ? null : value);
    if (this._values.length > LENGTH) {
      this._values.shift();
    }
  }

  private _values: (number | null)[] = [];
}
