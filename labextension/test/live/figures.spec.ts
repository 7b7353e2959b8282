import { ENGLISH } from '../../src/common/translate';
import {
  bandwidth,
  bytes,
  count,
  digits,
  milliseconds,
  percent,
  tick,
  time
} from '../../src/live/format';
import { KeyFiguresBar } from '../../src/live/keyfigures';
import { readKey } from '../../src/live/keys';
import {
  axisEnd,
  labelledRows,
  layout,
  NARROW,
  roundUp
} from '../../src/live/layout';
import { darker, EXPOSED, IN_STACK, IN_TIME } from '../../src/live/phases';
import { ViewRange } from '../../src/live/range';
import { SUMMARY } from './rows';

describe('figures', () => {
  it.each([
    [0, '0', 'µs'],
    [299.4, '299', 'µs'],
    [999.6, '1.00', 'ms'],
    [24300, '24.3', 'ms'],
    [1234567, '1,235', 'ms'],
    [12345678, '12.3', 's']
  ])('%d µs is %s %s', (us, value, unit) => {
    expect(time(us)).toEqual({ value, unit });
  });

  it('groups digits and keeps three of them', () => {
    expect(count(1284)).toBe('1,284');
    expect(count(1234567)).toBe('1,234,567');
    expect([digits(8.7), digits(61.34), digits(1234.5)]).toEqual([
      '8.70',
      '61.3',
      '1,235'
    ]);
    expect(milliseconds(1234567)).toBe('1,234.57');
    expect(percent(0.248)).toBe('25 %');
  });

  it('a slow link is read in Mbit/s', () => {
    expect([bandwidth(8.7), bandwidth(0.0123)]).toEqual([
      { value: '8.70', unit: 'Gbit/s' },
      { value: '12.3', unit: 'Mbit/s' }
    ]);
  });

  it('sizes are in decimal units', () => {
    const sizes = [0, 999, 1000, 25_557_032].map(bytes);
    const texts = sizes.map(({ value, unit }) => `${value} ${unit}`);
    expect(texts).toEqual(['0 B', '999 B', '1.00 kB', '25.6 MB']);
  });

  it('shortens the ticks of an axis, and never a whole number', () => {
    const ticks = [0, 0.5, 5, 12.5, 20, 100, 150, 2000].map(tick);
    expect(ticks).toEqual([
      '0',
      '0.5',
      '5',
      '12.5',
      '20',
      '100',
      '150',
      '2,000'
    ]);
  });

  it('never shows a number that is not known', () => {
    const dashes = [
      time(NaN).value,
      count(NaN),
      digits(NaN),
      milliseconds(NaN),
      percent(NaN)
    ];
    expect(new Set(dashes)).toEqual(new Set(['–']));
  });
});

describe('key figures', () => {
  it.each([
    [{ first_iteration: 230, last_iteration: 329 }, null, '230 to 329'],
    [{ first_iteration: 230, last_iteration: 329 }, 300, '300 to 335']
  ])('of %j from %s are means of %s', (scope, first, shown) => {
    const bar = new KeyFiguresBar(ENGLISH);
    bar.update({ ...SUMMARY, iteration: 335, ...scope }, first);
    const text = bar.node.querySelector('.jp-gw-Live-scope')!.textContent;
    expect(text).toBe(`Mean of iterations ${shown}`);
  });

  it('of an earlier version do not say over which iterations they are', () => {
    const bar = new KeyFiguresBar(ENGLISH);
    bar.update(SUMMARY);
    expect(bar.node.querySelector('.jp-gw-Live-scope')!.textContent).toBe('');
  });
});

describe('layout', () => {
  it('puts two columns beside each other that fill the width', () => {
    const { narrow, left, right } = layout(1000, 2);
    expect(narrow).toBe(false);
    expect(left + right).toBe(1000 - 16);
  });

  it('stacks the columns where it is narrow', () => {
    const { narrow, left, right } = layout(NARROW - 1, 2);
    expect([narrow, left, right]).toEqual([true, NARROW - 1, NARROW - 1]);
  });

  it('does not let one warm-up flatten all other iterations', () => {
    const steady = Array.from({ length: 99 }, () => 20);
    expect(axisEnd([...steady, 21])).toBeLessThan(26);
    expect(axisEnd([...steady, 2000])).toBeLessThan(31);
    expect(axisEnd([])).toBe(1);
  });

  it('rounds up to figures that people read', () => {
    expect([roundUp(17), roundUp(20), roundUp(0.21), roundUp(801)]).toEqual([
      20, 20, 0.25, 1000
    ]);
  });

  it('labels as many rows as there is room for', () => {
    expect(labelledRows(2, 40, 12)).toEqual([0, 1]);
    expect(labelledRows(64, 48, 12)).toEqual([0, 16, 32, 48]);
  });

  it('gives many ranks more room, within bounds', () => {
    const heights = [2, 64, 512].map(ranks => layout(1000, ranks).waiting);
    expect(heights[1]).toBeGreaterThanOrEqual(3 * 64);
    expect(heights[2]).toBeLessThanOrEqual(216);
    expect(heights[0]).toBeLessThan(heights[1]);
  });
});

describe('phases', () => {
  it('has exposed communication on top of the stack', () => {
    expect(IN_STACK[IN_STACK.length - 1]).toBe(EXPOSED);
    expect(new Set(IN_STACK)).toEqual(new Set(IN_TIME));
  });

  it('edges are darker than what they enclose', () => {
    expect(darker('#D55E00')).toBe('#8a3d00');
  });
});

describe('ViewRange', () => {
  it('follows the newest iterations', () => {
    const range = new ViewRange();
    range.span = 100;
    expect(range.current(0, 49)).toEqual({ from: 0, to: 50 });
    expect(range.current(0, 999)).toEqual({ from: 900, to: 1000 });
    range.span = null;
    expect(range.current(7, 999)).toEqual({ from: 7, to: 1000 });
  });

  it('stands still when zoomed, until it follows again', () => {
    const range = new ViewRange();
    range.fix({ from: 10.4, to: 20.2 }, 'pause');
    expect(range.current(0, 999)).toEqual({ from: 10, to: 21 });
    expect(range.mode).toBe('pause');
    range.follow();
    expect(range.current(0, 9)).toEqual({ from: 0, to: 10 });
  });

  it('never zooms in to nothing', () => {
    const range = new ViewRange();
    range.fix({ from: 5, to: 5 }, 'select');
    expect(range.current(0, 99)).toEqual({ from: 5, to: 9 });
  });
});

describe('keys', () => {
  const range = { from: 100, to: 200 };
  const held = { first: 0, last: 199 };
  const read = (key: string, at = 150): ReturnType<typeof readKey> =>
    readKey(key, at, range, held);

  it('move by one iteration, and not beyond the last', () => {
    expect(read('ArrowLeft')).toEqual({ cursor: 149 });
    expect(read('ArrowRight', 199)).toEqual({ cursor: 199 });
    expect(read('ArrowLeft', 0)).toEqual({ cursor: 0 });
  });

  it('move to the ends of what is shown', () => {
    expect([read('Home'), read('End')]).toEqual([
      { cursor: 100 },
      { cursor: 199 }
    ]);
  });

  it('zoom around the iteration under the cursor', () => {
    expect(read('+')).toEqual({ cursor: 150, zoom: { from: 125, to: 175 } });
    expect(read('-')).toEqual({ cursor: 150, zoom: { from: 50, to: 200 } });
  });

  it('begin and end a mark at the iteration under the cursor', () => {
    expect(read('[')).toEqual({ cursor: 150, zoom: { from: 150, to: 200 } });
    expect(read(']')).toEqual({ cursor: 150, zoom: { from: 100, to: 151 } });
  });

  it('follow again at escape, and leave other keys alone', () => {
    expect(read('Escape')).toEqual({ cursor: null });
    expect(read('x')).toBeNull();
  });
});
