/**
 * Readers of JSON. Each takes a value and its path in the message, and returns the
 * value with its type, or throws an error that names the path and what was found.
 *
 * The type of a message is inferred from its reader: `Infer<typeof reader>`.
 */
import { isUnknown, IUnknown, Known } from './known';

export type Reader<T> = (value: unknown, path: string) => T;

/** The type that a reader returns. */
export type Infer<R> = R extends Reader<infer T> ? T : never;

type Fields = Record<string, Reader<unknown>>;

type Shape<F extends Fields> = { readonly [K in keyof F]: Infer<F[K]> };

export const number: Reader<number> = (value, path) =>
  typeof value === 'number' ? value : Private.fail('a number', value, path);

export const string: Reader<string> = (value, path) =>
  typeof value === 'string' ? value : Private.fail('a text', value, path);

export const boolean: Reader<boolean> = (value, path) =>
  typeof value === 'boolean'
    ? value
    : Private.fail('true or false', value, path);

export function oneOf<T extends string>(...allowed: T[]): Reader<T> {
  return (value, path) =>
    allowed.find(one => one === value) ??
    Private.fail(`one of ${allowed.join(', ')}`, value, path);
}

export function nullable<T>(reader: Reader<T>): Reader<T | null> {
  return (value, path) => (value === null ? null : reader(value, path));
}

export function list<T>(item: Reader<T>): Reader<readonly T[]> {
  return (value, path) =>
    Array.isArray(value)
      ? value.map((one, index) => item(one, `${path}[${index}]`))
      : Private.fail('a list', value, path);
}

/** Values of one type by their names. */
export function dictionary<T>(
  item: Reader<T>
): Reader<Readonly<Record<string, T>>> {
  return (value, path) =>
    Object.fromEntries(
      Object.entries(Private.object(value, path)).map(([name, one]) => [
        name,
        item(one, `${path}.${name}`)
      ])
    );
}

/** An object with these fields; fields that only a later version has are ignored. */
export function record<F extends Fields>(fields: F): Reader<Shape<F>> {
  return (value, path) => {
    const found = Private.object(value, path);
    const read: Record<string, unknown> = {};
    for (const [name, reader] of Object.entries(fields)) {
      read[name] = reader(found[name], `${path}.${name}`);
    }
    return read as Shape<F>;
  };
}

/** As `record`, of the version that this page reads. */
export function versioned<F extends Fields>(
  version: number,
  fields: F
): Reader<Shape<F>> {
  const [readVersion, read] = [record({ version: number }), record(fields)];
  return (value, path) => {
    const found = readVersion(value, path).version;
    if (found !== version) {
      throw new Error(
        `${path}: version ${found}, but this page reads version ${version}; reload the page`
      );
    }
    return read(value, path);
  };
}

/** A record whose `type` says which of these it is. */
export function variants<V extends Record<string, Reader<object>>>(
  readers: V
): Reader<{ [K in keyof V]: { readonly type: K } & Infer<V[K]> }[keyof V]> {
  const readType = record({ type: oneOf(...Object.keys(readers)) });
  return (value, path) => {
    const { type } = readType(value, path);
    return { type, ...readers[type](value, path) } as ReturnType<
      ReturnType<typeof variants<V>>
    >;
  };
}

/** A value, or `{"unknown": "<reason>"}`. */
export function known<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path) =>
    isUnknown(value)
      ? { unknown: string(value.unknown, `${path}.unknown`) }
      : reader(value, path);
}

/** As `known`, for a field that an older server does not send. */
export function knownIfSent<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path) =>
    value === undefined
      ? { unknown: 'not reported by this server' }
      : known(reader)(value, path);
}

/** In place of a value that was sent and cannot be read. */
export class Unreadable implements IUnknown {
  constructor(readonly unknown: string) {}
}

/** As `known`, for a part whose errors must not cost the whole message. */
export function tolerant<T>(reader: Reader<T>): Reader<Known<T>> {
  return (value, path) => {
    try {
      return known(reader)(value, path);
    } catch (error) {
      return new Unreadable((error as Error).message);
    }
  };
}

/** Why some part of a message could not be read; `null` where all could. */
export function findUnreadable(message: unknown): string | null {
  if (message instanceof Unreadable) {
    return message.unknown;
  }
  const parts =
    typeof message === 'object' && message ? Object.values(message) : [];
  for (const part of parts) {
    const found = findUnreadable(part);
    if (found !== null) {
      return found;
    }
  }
  return null;
}

namespace Private {
  export function fail(expected: string, found: unknown, path: string): never {
    throw new Error(`${path}: expected ${expected}, found ${describe(found)}`);
  }

  export function object(
    value: unknown,
    path: string
  ): Record<string, unknown> {
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : fail('an object', value, path);
  }

  function describe(value: unknown): string {
    return value === undefined ? 'nothing' : JSON.stringify(value).slice(0, 60);
  }
}
