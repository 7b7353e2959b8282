/** A figure for people: the number, and its unit apart, so that each has its column. */
export interface IFigure {
  readonly number: string;
  readonly unit: string;
}

const GIB = 2 ** 30;

/** Three significant places at the most and never an exponent: `0.42`, `61.3`, `847`. */
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

/** Bits, as a link's nominal rate is given in. */
export function rateFigure(bytesPerSecond: number): IFigure {
  const bits = bytesPerSecond * 8;
  const [scale, unit] =
    bits >= 999.5e6
      ? [1e9, 'Gbit/s']
      : bits >= 999.5e3
        ? [1e6, 'Mbit/s']
        : [1e3, 'kbit/s'];
  return { number: compact(bits / scale), unit };
}

export function powerFigure(watts: number): IFigure {
  return { number: watts.toFixed(0), unit: 'W' };
}

export function temperatureFigure(celsius: number): IFigure {
  return { number: celsius.toFixed(0), unit: '°C' };
}

/** Whole GiB, for the line of a closed card. */
export function roundGib(bytes: number): string {
  return `${Math.round(bytes / GIB)} GiB`;
}

/** `100G`, as NICs are named by their rate; gbps: gigabits per second. */
export function linkRate(gbps: number): string {
  return `${Number(gbps.toPrecision(3))}G`;
}
