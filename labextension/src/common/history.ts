import { isUnknown, Known } from '../schema/known';

/** How many values are kept by default, at one per second. */
export const MINUTE = 60;

/**
 * The last values of one series, the newest last.
 *
 * What was not known is kept as a gap (`null`), so that a line shows it as one.
 */
export class History {
  /** `length`: how many values are kept. */
  constructor(length: number = MINUTE) {
    this._length = length;
  }

  get values(): readonly (number | null)[] {
    return this._values;
  }

  set length(length: number) {
    this._length = length;
    this._cut();
  }

  push(value: Known<number>): void {
    this._values.push(isUnknown(value) ? null : value);
    this._cut();
  }

  private _cut(): void {
    if (this._values.length > this._length) {
      this._values.splice(0, this._values.length - this._length);
    }
  }

  private _length: number;
  private _values: (number | null)[] = [];
}
