import {
  compact,
  linkRate,
  memoryFigure,
  rateFigure,
  roundGib
} from '../src/common/format';

describe('compact', () => {
  it.each([
    [0, '0'],
    [0.416, '0.42'],
    [9.994, '9.99'],
    [9.996, '10.0'],
    [61.34, '61.3'],
    [99.96, '100'],
    [847.2, '847']
  ])('shows %d as %s', (value, text) => {
    expect(compact(value)).toBe(text);
  });
});

describe('rateFigure', () => {
  it.each([
    [0, '0', 'kbit/s'],
    [1250, '10.0', 'kbit/s'],
    [124.9e3, '999', 'kbit/s'],
    [125e3, '1.00', 'Mbit/s'],
    [124.95e6, '1.00', 'Gbit/s'],
    [7.6625e9, '61.3', 'Gbit/s']
  ])('shows %d bytes per second in bits', (bytes, number, unit) => {
    expect(rateFigure(bytes)).toEqual({ number, unit });
  });
});

it('shows memory in binary units, and a link by its nominal rate', () => {
  expect(memoryFigure(31.2 * 2 ** 30)).toEqual({ number: '31.2', unit: 'GiB' });
  expect(roundGib(25276514304)).toBe('24 GiB');
  expect(linkRate(100)).toBe('100G');
  expect(linkRate(2.5)).toBe('2.5G');
});
