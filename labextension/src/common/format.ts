import { isUnknown, Known, mapKnown, orElse } from '../schema/known';
import { ITranslate } from './translate';

/** A figure: the number and its unit, so that each has its own column. */
export interface IFigure {
  readonly number: string;
  readonly unit: string;
}

const GIB = 2 ** 30;

/** At most three significant digits and no exponent: `0.42`, `61.3`, `847`. */
export function compact(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95 || size === 0) {
    return value.toFixed(0);
  }
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** `percent`: 0 to 100. */
export function percentFigure(percent: number): IFigure {
  return { number: percent.toFixed(0), unit: '%' };
}

export function memoryFigure(bytes: number): IFigure {
  return { number: compact(bytes / GIB), unit: 'GiB' };
}

/** The unit of rates. */
export type RateUnit = 'bits' | 'bytes';

/** In bits by default, like the nominal rate of a link. */
export function rateFigure(
  bytesPerSecond: number,
  unit: RateUnit = 'bits'
): IFigure {
  const value = unit === 'bits' ? bytesPerSecond * 8 : bytesPerSecond;
  const [scale, prefix] =
    value >= 999.5e6 ? [1e9, 'G'] : value >= 999.5e3 ? [1e6, 'M'] : [1e3, 'k'];
  return {
    number: compact(value / scale),
    unit: unit === 'bits' ? `${prefix}bit/s` : `${prefix}B/s`
  };
}

/** Rates in the unit of the largest, so that they can be compared. */
export function rateTogether(
  bytesPerSecond: readonly Known<number>[],
  unit: RateUnit
): { numbers: Known<string>[]; unit: string } {
  const known = bytesPerSecond.filter(
    (rate): rate is number => !isUnknown(rate)
  );
  if (known.length === 0) {
    return { numbers: bytesPerSecond as Known<string>[], unit: '' };
  }
  const top = rateFigure(Math.max(...known), unit);
  const scale = { G: 1e9, M: 1e6, k: 1e3 }[top.unit[0]]!;
  const factor = (unit === 'bits' ? 8 : 1) / scale;
  return {
    numbers: bytesPerSecond.map(rate =>
      mapKnown(rate, value => compact(value * factor))
    ),
    unit: top.unit
  };
}

/** Events per second, such as packets: `k` and `M` for thousands and millions. */
export function countFigure(perSecond: number): IFigure {
  const [scale, unit] =
    perSecond >= 999.5e3
      ? [1e6, 'M/s']
      : perSecond >= 999.5
        ? [1e3, 'k/s']
        : [1, '/s'];
  return { number: compact(perSecond / scale), unit };
}

export function powerFigure(watts: number): IFigure {
  return { number: watts.toFixed(0), unit: 'W' };
}

export function temperatureFigure(celsius: number): IFigure {
  return { number: celsius.toFixed(0), unit: '°C' };
}

/** Rounded GiB, for the line of a closed card. */
export function roundGib(bytes: number): string {
  return `${Math.round(bytes / GIB)} GiB`;
}

/** `100G`: the name of a NIC's rate; gbps: gigabits per second. */
export function linkRate(gbps: number): string {
  return `${Number(gbps.toPrecision(3))}G`;
}

/** The state of a NIC's link in the user's language; empty if it is unknown. */
export function nicState(
  nic: { readonly state: Known<string> },
  trans: ITranslate
): string {
  const states: Record<string, string> = {
    up: trans.__('up'),
    active: trans.__('active'),
    down: trans.__('down')
  };
  const state = orElse(nic.state, '');
  return states[state] ?? state;
}
