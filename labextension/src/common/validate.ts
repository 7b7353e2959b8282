/**
 * Readers: each takes a JSON value and its place in the message, and returns it
 * with its type, or throws an error that names the place and what was found.
 */
import { IUnknown, isUnknown, Known } from './known';

export type Reader<T> = (value: unknown, where: string) => T;

type Fields<T> = { [K in keyof T]-?: Reader<T[K]> };

export function number(value: unknown, where: string): number {
  return typeof value === 'number'
    ? value
    : Private.fail('a number', value, where);
}

export function string(value: unknown, where: string): string {
  return typeof value === 'string'
    ? value
    : Private.fail('a text', value, where);
}

export function oneOf<T extends string>(...allowed: T[]): Reader<T> {
  return (value, where) =>
    allowed.find(one => one === value) ??
    Private.fail(`one of ${allowed.join(', ')}`, value, where);
}

export function list<T>(item: Reader<T>): Reader<T[]> {
  return (value, where) =>
    Array.isArray(value)
      ? value.map((one, index) => item(one, `${where}[${index}]`))
      : Private.fail('a list', value, where);
}

/** The fields of `fields` are read; further ones, of a later version, are left out. */
export function record<T>(fields: Fields<T>): Reader<T> {
  return (value, where) => {
    const found = Private.object(value, where);
    const read = {} as T;
    for (const key of Object.keys(fields) as (keyof T & string)[]) {
      read[key] = fields[key](found[key], `${where}.${key}`);
    }
    return read;
  };
}

/** A value of `reader`, or `{"unknown": "<reason>"}`. */
export function known<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, where) =>
    isUnknown(value) ? Private.unknown(value, where) : reader(value, where);
}

/** As `known`, for a field that an older server does not send. */
export function knownIfSent<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, where) =>
    value === undefined
      ? { unknown: 'not reported by this server' }
      : known(reader)(value, where);
}

/** Values of one kind by their names. */
export function dictionary<T>(item: Reader<T>): Reader<Record<string, T>> {
  return (value, where) =>
    Object.fromEntries(
      Object.entries(Private.object(value, where)).map(([name, one]) => [
        name,
        item(one, `${where}.${name}`)
      ])
    );
}

/** `reader`, or why not: what cannot be read costs itself only. */
export function orWhyNot<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, where) => {
    try {
      return known(reader)(value, where);
    } catch (error) {
      return { unknown: (error as Error).message };
    }
  };
}

export function boolean(value: unknown, where: string): boolean {
  return typeof value === 'boolean'
    ? value
    : Private.fail('true or false', value, where);
}

export function nullable<T>(reader: Reader<T>): Reader<T | null> {
  return (value, where) => (value === null ? null : reader(value, where));
}

namespace Private {
  export function fail(expected: string, found: unknown, where: string): never {
    throw new Error(`${where}: expected ${expected}, found ${describe(found)}`);
  }

  export function object(
    value: unknown,
    where: string
  ): Record<string, unknown> {
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : fail('an object', value, where);
  }

  export function unknown(value: IUnknown, where: string): IUnknown {
    return { unknown: string(value.unknown, `${where}.unknown`) };
  }

  function describe(value: unknown): string {
    return value === undefined ? 'nothing' : JSON.stringify(value).slice(0, 60);
  }
}
