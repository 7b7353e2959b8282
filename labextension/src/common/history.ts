import { isUnknown, Known } from '../schema/known';

/** Default number of values, at one per second. */
export const MINUTE = 60;

/**
 * The last values of one series, the newest last.
 *
 * An unknown value is stored as a gap (`null`), and drawn as one.
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

  /** Add a value; `null` if there is none at this time. */
  push(value: Known<number> | null): void {
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
