/** A value that could not be read, with the reason; never zero, never blank. */
export interface IUnknown {
  readonly unknown: string;
}

/** A value, or why it is unknown. */
export type Known<T> = T | IUnknown;

export function isUnknown(value: unknown): value is IUnknown {
  return typeof value === 'object' && value !== null && 'unknown' in value;
}

/** The value, or `fallback` if it is unknown. */
export function orElse<T>(value: Known<T>, fallback: T): T {
  return isUnknown(value) ? fallback : value;
}

/** `f` of the value; an unknown value keeps its reason. */
export function mapKnown<T, U>(value: Known<T>, f: (value: T) => U): Known<U> {
  return isUnknown(value) ? value : f(value);
}

/** Whether both are unknown for the same reason, as nobody inspected their device. */
export function isUninspected(a: Known<unknown>, b: Known<unknown>): boolean {
  return isUnknown(a) && isUnknown(b) && a.unknown === b.unknown;
}
