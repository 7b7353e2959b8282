/**
 * Figures as text: three significant digits, with a separate unit.
 */

export interface IFigureText {
  value: string;
  unit: string;
}

/** Shown for an unknown value. */
export const DASH = '–';

/** A time given in microseconds: µs below 1 ms, ms below 10 s, then s. */
export function time(us: number): IFigureText {
  if (!Number.isFinite(us)) {
    return { value: DASH, unit: '' };
  }
  if (Math.abs(us) < 999.5) {
    return { value: us.toFixed(0), unit: 'µs' };
  }
  if (Math.abs(us) < 9.9995e6) {
    return { value: digits(us / 1e3), unit: 'ms' };
  }
  return { value: digits(us / 1e6), unit: 's' };
}

/** A time given in microseconds, always in ms with two decimals: for tables. */
export function milliseconds(us: number): string {
  return Number.isFinite(us) ? grouped((us / 1e3).toFixed(2)) : DASH;
}

/** A size in bytes, in decimal units like bandwidths. */
export function bytes(size: number): IFigureText {
  const units = ['B', 'kB', 'MB', 'GB'];
  const power = Math.min(
    units.length - 1,
    Math.max(0, Math.floor(Math.log10(Math.max(1, size)) / 3))
  );
  const scaled = size / 1000 ** power;
  const value = power === 0 ? count(scaled) : digits(scaled);
  return { value, unit: units[power] };
}

/** A bandwidth given in Gbit/s; in Mbit/s if it is far below one. */
export function bandwidth(gbps: number): IFigureText {
  return gbps < 0.0995
    ? { value: digits(gbps * 1e3), unit: 'Mbit/s' }
    : { value: digits(gbps), unit: 'Gbit/s' };
}

/** A share from 0 to 1 as a percentage without decimals. */
export function percent(share: number): string {
  return Number.isFinite(share) ? `${(share * 100).toFixed(0)} %` : DASH;
}

/** A count with groups of three digits. */
export function count(value: number): string {
  return Number.isFinite(value) ? grouped(value.toFixed(0)) : DASH;
}

/** Three significant digits, never an exponent. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) {
    return DASH;
  }
  const size = Math.abs(value);
  const decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return grouped(value.toFixed(decimals));
}

/** Like `digits`, without trailing zeros: for the ticks of an axis. */
export function tick(value: number): string {
  const text = digits(value);
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

function grouped(text: string): string {
  const [integer, fraction] = text.split('.');
  const spaced = integer.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction === undefined ? spaced : `${spaced}.${fraction}`;
}
