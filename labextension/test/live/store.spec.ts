import { Columns, spans, spanMean } from '../../src/live/decimate';
import { COLUMNS, Figure, readRows } from '../../src/live/protocol';
import { TimingStore } from '../../src/live/store';
import { pack, row, rows } from './rows';

const PLACES = [
  { rank: 0, vm: 'vm1' },
  { rank: 1, vm: 'vm2' }
];

function store(all: number[][]): TimingStore {
  const made = new TimingStore();
  made.setRanks(PLACES);
  made.add(readRows(COLUMNS, all.length, pack(all)));
  return made;
}

function add(to: TimingStore, all: number[][]): void {
  to.add(readRows(COLUMNS, all.length, pack(all)));
}

describe('TimingStore', () => {
  it('holds what was added, by iteration and rank', () => {
    const held = store([row(3, 0), row(3, 1, { exposed_us: 7000 })]);
    expect([held.first, held.last, held.length]).toEqual([3, 3, 1]);
    expect(held.get('exposed_us', 3, 1)).toBe(7000);
    expect(held.mean('exposed_us', 3, null)).toBe(6500);
    expect(held.mean('exposed_us', 3, 0)).toBe(6000);
  });

  it('knows nothing of iterations that did not come', () => {
    const held = store([row(0, 0), row(0, 1), row(2, 0)]);
    expect(held.get('iteration_us', 1, 0)).toBeNaN();
    expect(held.mean('iteration_us', 1, null)).toBeNaN();
    expect(held.get('iteration_us', 2, 1)).toBeNaN();
    expect(held.mean('iteration_us', 2, null)).toBe(20000);
    expect(held.get('iteration_us', 3, 0)).toBeNaN();
  });

  it('waits a little for the ranks that have not reported', () => {
    const held = store([...rows(0, 3), row(3, 0)]);
    expect(held.lastWhole).toBe(2);
    add(held, [row(3, 1)]);
    expect(held.lastWhole).toBe(3);
    add(held, [row(4, 0), row(5, 0), row(6, 0)]);
    expect(held.lastWhole).toBe(3);
    expect(store([row(0, 0)]).lastWhole).toBe(0);
  });

  it('takes a row that comes twice once', () => {
    const held = store(rows(0, 5));
    add(held, [row(4, 1, { wait_us: 42 })]);
    expect(held.length).toBe(5);
    expect(held.get('wait_us', 4, 1)).toBe(42);
  });

  it('stands still for what it holds, and tells the rest later', () => {
    const held = store([row(0, 0), row(0, 1, { wait_us: NaN })]);
    held.still = true;
    add(held, [row(0, 0, { wait_us: 7 }), row(0, 1, { wait_us: 8 })]);
    add(held, [row(1, 0, { wait_us: 9 })]);
    expect(held.get('wait_us', 0, 0)).toBe(0);
    expect(held.get('wait_us', 0, 1)).toBeNaN();
    expect(held.get('wait_us', 1, 0)).toBe(9);
    const before = held.version(0);
    held.still = false;
    expect(held.get('wait_us', 0, 0)).toBe(7);
    expect(held.get('wait_us', 0, 1)).toBe(8);
    expect(held.version(0)).toBeGreaterThan(before);
  });

  it('keeps figures that fit each other while it is frozen', () => {
    const parts: Figure[] = ['wait_us', 'queued_us', 'transfer_us'];
    const read = (held: TimingStore, rank: number): number[] =>
      [...parts, 'exposed_us' as const].map(name => held.get(name, 0, rank));
    const first = { wait_us: NaN, queued_us: 4000, transfer_us: 2000 };
    const held = store([row(0, 0, first), row(0, 1, first)]);
    held.still = true;
    const refined = { wait_us: 3000, queued_us: 1000, transfer_us: 2000 };
    const again = { ...refined, exposed_us: 7000, transfer_us: 3000 };
    add(held, [row(0, 0, refined), row(0, 1, refined)]);
    add(held, [row(0, 1, again)]);
    expect(read(held, 0)).toEqual([NaN, 4000, 2000, 6000]);
    expect(read(held, 1)).toEqual([NaN, 4000, 2000, 6000]);
    expect(held.mean('transfer_us', 0, null)).toBe(2000);
    held.still = false;
    expect(read(held, 0)).toEqual([3000, 1000, 2000, 6000]);
    expect(read(held, 1)).toEqual([3000, 1000, 3000, 7000]);
    add(held, [row(0, 0, { ...refined, wait_us: 3500 })]);
    expect(held.get('wait_us', 0, 0)).toBe(3500);
  });

  it('takes older rows in, where there is room', () => {
    const held = store(rows(100, 105));
    add(held, rows(90, 105));
    expect([held.first, held.last]).toEqual([90, 104]);
    expect(held.get('iteration_us', 90, 0)).toBe(20000);
  });

  it('forgets the oldest iterations when it is full', () => {
    const held = store([row(0, 0)]);
    const { capacity } = held;
    add(held, rows(capacity, capacity + 10));
    expect(held.first).toBe(10);
    expect(held.get('iteration_us', 0, 0)).toBeNaN();
    // The slots between were last used by nobody.
    expect(held.get('iteration_us', capacity - 1, 0)).toBeNaN();
    expect(held.get('iteration_us', capacity + 9, 1)).toBe(20000);
    add(held, [row(3, 0)]);
    expect(held.first).toBe(10);
  });

  it('keeps an hour of 2 ranks at 20 iterations a second, and 10,000 iterations of 64', () => {
    const held = store([]);
    expect(held.capacity).toBeGreaterThanOrEqual(3600 * 20);
    held.setRanks(Array.from({ length: 64 }, (_, rank) => ({ rank, vm: '' })));
    expect(held.capacity).toBeGreaterThanOrEqual(10000);
  });

  it('keeps what it holds while it grows', () => {
    const held = store(rows(0, 3));
    add(held, rows(3, 5000));
    expect([held.first, held.last]).toEqual([0, 4999]);
    const steady = [0, 2, 1500, 4999];
    expect(steady.map(at => held.get('exposed_us', at, 1))).toEqual(
      steady.map(() => 6000)
    );
  });

  it('begins anew with other ranks', () => {
    const held = store(rows(0, 5));
    held.setRanks([...PLACES, { rank: 2, vm: 'vm2' }]);
    expect(held.length).toBe(0);
  });

  it('leaves rows of ranks that it was not told of out', () => {
    expect(store([row(0, 7)]).length).toBe(0);
  });
});

describe('decimation', () => {
  it('gives every iteration a column while there are enough', () => {
    expect(spans(5, 8, 10)).toEqual([
      { from: 5, to: 6 },
      { from: 6, to: 7 },
      { from: 7, to: 8 }
    ]);
  });

  it('covers each iteration once, in order, in few enough columns', () => {
    const all = spans(7, 10007, 300);
    expect(all[0].from).toBe(7);
    expect(all[all.length - 1].to).toBe(10007);
    all.slice(1).forEach((span, i) => expect(span.from).toBe(all[i].to));
    expect(all.length).toBeLessThanOrEqual(301);
  });

  it('cuts at the same places when newer iterations come', () => {
    const cuts = (to: number): number[] => spans(0, to, 100).map(s => s.from);
    expect(cuts(995).slice(0, 99)).toEqual(cuts(999).slice(0, 99));
  });

  it('means what is known', () => {
    const held = store([
      row(0, 0, { exposed_us: 1000 }),
      row(0, 1, { exposed_us: 2000 }),
      row(2, 0, { exposed_us: 4500 })
    ]);
    const span = { from: 0, to: 3 };
    expect(spanMean(held, 'exposed_us', span, null)).toBe(3000);
    expect(spanMean(held, 'exposed_us', span, 1)).toBe(2000);
    expect(spanMean(held, 'exposed_us', { from: 1, to: 2 }, 0)).toBeNaN();
  });

  it('keeps the peaks that a mean hides', () => {
    const held = store(rows(0, 100));
    const peak = { iteration_us: 90000, wait_us: 8000, busbw_gbps: 0.5 };
    add(held, [row(42, 0, peak), row(42, 1, peak)]);
    const [one] = new Columns().of(held, [{ from: 0, to: 100 }], null);
    expect([one.longest, one.least, one.most]).toEqual([90000, 0.5, 5]);
    expect(Array.from(one.waits)).toEqual([8000, 8000]);
  });

  it('makes a column again only where its iterations have changed', () => {
    const held = store(rows(0, 20));
    const columns = new Columns();
    const cut = (): ReturnType<typeof spans> => spans(0, held.last + 1, 2);
    const [first, second] = columns.of(held, cut(), null);
    add(held, rows(0, 20)); // the same once more, as windows do
    add(held, [row(19, 1, { exposed_us: 7000 })]);
    const [same, other] = columns.of(held, cut(), null);
    expect(same).toBe(first);
    expect(other).not.toBe(second);
    expect(columns.of(held, cut(), 1)[0]).not.toBe(first);
  });

  it('has no columns where there is nothing', () => {
    expect(spans(0, 0, 100)).toEqual([]);
    expect(spans(0, 10, 0)).toEqual([]);
  });
});
