/**
 * Readers of JSON. Each takes a value and its path in the message, and returns the
 * value with its type, or throws an error that names the path and what was found, in the
 * user's language.
 *
 * The type of a message is inferred from its reader: `Infer<typeof reader>`.
 */
import { ENGLISH, ITranslate } from '../common/translate';
import { isUnknown, IUnknown, Known } from './known';

export type Reader<T> = (value: unknown, path: string, trans?: ITranslate) => T;

/** The type that a reader returns. */
export type Infer<R> = R extends Reader<infer T> ? T : never;

type Fields = Record<string, Reader<unknown>>;

type Shape<F extends Fields> = { readonly [K in keyof F]: Infer<F[K]> };

export const number: Reader<number> = (value, path, trans = ENGLISH) =>
  typeof value === 'number'
    ? value
    : Private.fail(trans.__('a number'), value, path, trans);

export const string: Reader<string> = (value, path, trans = ENGLISH) =>
  typeof value === 'string'
    ? value
    : Private.fail(trans.__('a text'), value, path, trans);

export const boolean: Reader<boolean> = (value, path, trans = ENGLISH) =>
  typeof value === 'boolean'
    ? value
    : Private.fail(trans.__('true or false'), value, path, trans);

export function oneOf<T extends string>(...allowed: T[]): Reader<T> {
  return (value, path, trans = ENGLISH) =>
    allowed.find(one => one === value) ??
    Private.fail(trans.__('one of %1', allowed.join(', ')), value, path, trans);
}

export function nullable<T>(reader: Reader<T>): Reader<T | null> {
  return (value, path, trans) =>
    value === null ? null : reader(value, path, trans);
}

export function list<T>(item: Reader<T>): Reader<readonly T[]> {
  return (value, path, trans = ENGLISH) =>
    Array.isArray(value)
      ? value.map((one, index) => item(one, `${path}[${index}]`, trans))
      : Private.fail(trans.__('a list'), value, path, trans);
}

/** Values of one type by their names. */
export function dictionary<T>(
  item: Reader<T>
): Reader<Readonly<Record<string, T>>> {
  return (value, path, trans = ENGLISH) =>
    Object.fromEntries(
      Object.entries(Private.object(value, path, trans)).map(([name, one]) => [
        name,
        item(one, `${path}.${name}`, trans)
      ])
    );
}

/** An object with these fields; fields that only a later version has are ignored. */
export function record<F extends Fields>(fields: F): Reader<Shape<F>> {
  return (value, path, trans = ENGLISH) => {
    const found = Private.object(value, path, trans);
    const read: Record<string, unknown> = {};
    for (const [name, reader] of Object.entries(fields)) {
      read[name] = reader(found[name], `${path}.${name}`, trans);
    }
    return read as Shape<F>;
  };
}

/** Like `record`, with a check of the version. */
export function versioned<F extends Fields>(
  version: number,
  fields: F
): Reader<Shape<F>> {
  const [readVersion, read] = [record({ version: number }), record(fields)];
  return (value, path, trans = ENGLISH) => {
    const found = readVersion(value, path, trans).version;
    if (found !== version) {
      throw new Error(
        trans.__(
          '%1: version %2, but this page reads version %3. Reload the page.',
          path,
          found,
          version
        )
      );
    }
    return read(value, path, trans);
  };
}

/** A record whose `type` selects one of these readers. */
export function variants<V extends Record<string, Reader<object>>>(
  readers: V
): Reader<{ [K in keyof V]: { readonly type: K } & Infer<V[K]> }[keyof V]> {
  const readType = record({ type: oneOf(...Object.keys(readers)) });
  return (value, path, trans) => {
    const { type } = readType(value, path, trans);
    return { type, ...readers[type](value, path, trans) } as ReturnType<
      ReturnType<typeof variants<V>>
    >;
  };
}

/** A value, or `{"unknown": "<reason>"}`. */
export function known<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path, trans) =>
    isUnknown(value)
      ? { unknown: string(value.unknown, `${path}.unknown`, trans) }
      : reader(value, path, trans);
}

/** Like `known`, for a field that an older server does not send. */
export function knownIfSent<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path, trans = ENGLISH) =>
    value === undefined
      ? { unknown: trans.__('not reported by this server') }
      : known(reader)(value, path, trans);
}

/** Replaces a value that was sent and cannot be read. */
export class Unreadable implements IUnknown {
  constructor(readonly unknown: string) {}
}

/** Like `known`, for a field whose errors must not invalidate the message. */
export function tolerant<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path, trans) => {
    try {
      return known(reader)(value, path, trans);
    } catch (error) {
      return new Unreadable((error as Error).message);
    }
  };
}

/** Why a field of a message could not be read; `null` if all could. */
export function findUnreadable(message: unknown): string | null {
  if (message instanceof Unreadable) {
    return message.unknown;
  }
  const values =
    typeof message === 'object' && message ? Object.values(message) : [];
  for (const value of values) {
    const found = findUnreadable(value);
    if (found !== null) {
      return found;
    }
  }
  return null;
}

namespace Private {
  export function fail(
    expected: string,
    found: unknown,
    path: string,
    trans: ITranslate
  ): never {
    const shown =
      found === undefined
        ? trans.__('nothing')
        : JSON.stringify(found).slice(0, 60);
    throw new Error(
      trans.__('%1: expected %2, found %3', path, expected, shown)
    );
  }

  export function object(
    value: unknown,
    path: string,
    trans: ITranslate
  ): Record<string, unknown> {
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : fail(trans.__('an object'), value, path, trans);
  }
}
