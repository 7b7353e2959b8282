/**
 * One statistic: what the page computes of a selection is what Python says of it.
 */

import { KeyFiguresBar } from '../../src/live/keyfigures';
import { COLUMNS, ISummary, LeftOut, readRows } from '../../src/live/protocol';
import { Selection } from '../../src/live/selection';
import { TimingStore } from '../../src/live/store';
import { ENGLISH } from '../../src/common/translate';
import { pack, row, SUMMARY } from './rows';

const OF = SUMMARY as ISummary;

function selectionOf(all: number[][]): Selection {
  const store = new TimingStore();
  store.setRanks([
    { rank: 0, vm: 'vm1' },
    { rank: 1, vm: 'vm2' }
  ]);
  store.add(readRows([...COLUMNS], all.length, pack(all)));
  return new Selection(store, { from: store.first, to: store.last + 1 });
}

/** Iterations whose exposed time has outliers: means and medians differ. */
function uneven(): number[][] {
  return [0, 1, 2, 3].flatMap(iteration =>
    [0, 1].map(rank => {
      const more = iteration === 3 ? 40_000 : 0;
      return row(iteration, rank, {
        iteration_us: 20_000 + more,
        exposed_us: 6_000 + more
      });
    })
  );
}

describe('Selection', () => {
  it('has means, which add up', () => {
    const selection = selectionOf(uneven());
    const found = selection.summary(OF, ENGLISH);
    expect(found.iteration_us).toBe(30_000);
    expect(found.exposed_us).toBe(16_000);
    expect(found.exposed_share).toBeCloseTo(16 / 30);
    expect(found.iterations_per_s).toBeCloseTo(1e6 / 30_000);
    const phases = [
      'data_us',
      'copy_us',
      'forward_us',
      'backward_us',
      'exposed_us',
      'optimizer_us',
      'other_us'
    ] as const;
    const sum = phases.reduce(
      (all, name) => all + selection.mean(name, null),
      0
    );
    expect(sum).toBeCloseTo(30_000);
  });

  it('leaves the first iteration of a cell out, and says so', () => {
    const all = uneven();
    const warming = [0, 1].map(rank =>
      row(4, rank, { iteration_us: 500_000, left_out: LeftOut.First })
    );
    const found = selectionOf([...all, ...warming]).summary(OF, ENGLISH);
    expect(found.iteration_us).toBe(30_000);
    expect(found.notes).toEqual([
      'The first iterations of cells are left out: they warm up.'
    ]);
    const alone = selectionOf(warming).summary(OF, ENGLISH);
    expect([alone.iteration_us, alone.notes]).toEqual([500_000, []]);
  });

  it('leaves profiled iterations out, whichever rank was profiled, and says so', () => {
    const profiled = [4, 5].flatMap(iteration =>
      [0, 1].map(rank =>
        row(iteration, rank, {
          iteration_us: 90_000,
          left_out: rank === 1 ? LeftOut.Profiled : LeftOut.No
        })
      )
    );
    const found = selectionOf([...uneven(), ...profiled]);
    const summary = found.summary(OF, ENGLISH);
    expect(summary.iteration_us).toBe(30_000);
    expect(found.mean('iteration_us', 0)).toBe(30_000);
    expect(summary.notes).toEqual([
      'Profiled iterations are left out: the profiler changes their duration.'
    ]);
    const alone = selectionOf(profiled).summary(OF, ENGLISH);
    expect(alone.iteration_us).toBe(90_000);
    expect(alone.notes).toEqual([
      'The figures are of profiled iterations: the profiler changes their duration.'
    ]);
  });

  it('reads the first iterations of cells in outputs of earlier versions', () => {
    const names = COLUMNS.map(one => (one === 'left_out' ? 'first' : one));
    const store = new TimingStore();
    store.setRanks([{ rank: 0, vm: '' }]);
    store.add(readRows(names, 1, pack([row(0, 0, { left_out: 1 })])));
    expect(store.leftOut(0)).toBe(LeftOut.First);
  });

  it('divides the exposed time, or says that its parts are unknown', () => {
    const all = uneven();
    const found = selectionOf(all).summary(OF, ENGLISH);
    const parts = [found.waiting_us, found.queued_us, found.transfer_us];
    expect(parts[0]).toBeCloseTo(50);
    expect(parts[1]).toBeCloseTo((15_950 * 1000) / 5950);
    const sum = parts.reduce<number>((all, part) => all + Number(part), 0);
    expect(sum).toBeCloseTo(found.exposed_us as number);
    const untimed = [0, 1].map(rank =>
      row(0, rank, { queued_us: NaN, transfer_us: NaN })
    );
    const other = selectionOf(untimed).summary(OF, ENGLISH);
    expect(other.waiting_us).toBeCloseTo(50);
    expect(other.queued_us).toEqual(other.transfer_us);
    expect(other.transfer_us).toEqual({
      unknown: 'not recorded for these iterations'
    });
  });

  it('divides the exposed time as where there is any', () => {
    const nothing = {
      exposed_us: 0,
      wait_us: 0,
      queued_us: 0,
      transfer_us: 0
    };
    const untimed = [0, 1].flatMap(rank => [
      row(0, rank, nothing),
      row(1, rank, { queued_us: NaN, transfer_us: NaN })
    ]);
    const found = selectionOf(untimed).summary(OF, ENGLISH);
    expect(found.waiting_us).toBeCloseTo(25);
    expect(found.queued_us).toEqual({
      unknown: 'not recorded for these iterations'
    });
    expect(found.transfer_us).toEqual(found.queued_us);
    const silent = [0, 1].map(rank => row(0, rank, nothing));
    const none = selectionOf(silent).summary(OF, ENGLISH);
    expect([none.waiting_us, none.queued_us, none.transfer_us]).toEqual([
      0, 0, 0
    ]);
  });

  it('has as bandwidth all bytes over all their time', () => {
    // 1 ms at 8 Gbit/s and 9 ms at 1 Gbit/s: 1 MB and 1.125 MB in 10 ms
    const all = [0, 1].flatMap(iteration =>
      [0, 1].map(rank =>
        row(iteration, rank, {
          busbw_gbps: iteration ? 1 : 8,
          communication_us: iteration ? 9_000 : 1_000
        })
      )
    );
    const found = selectionOf(all).summary(OF, ENGLISH);
    expect(found.busbw_gbps).toBeCloseTo(1.7);
  });

  it('says why there is no exposed time where nothing could time it', () => {
    const unheard = { unknown: 'not timed: torch.distributed' };
    const silent = { ...OF, exposed_us: unheard, busbw_gbps: unheard };
    const nan = { exposed_us: NaN, communication_us: NaN, busbw_gbps: NaN };
    const all = [row(0, 0, nan), row(0, 1, nan)];
    const found = selectionOf(all).summary(silent, ENGLISH);
    expect(found.iteration_us).toBe(20_000);
    expect([found.exposed_us, found.exposed_share, found.busbw_gbps]).toEqual([
      unheard,
      unheard,
      unheard
    ]);
  });
});

describe('KeyFiguresBar', () => {
  it('shows how far a calibration may be off', () => {
    const line = new KeyFiguresBar(ENGLISH);
    const known = { calibrated_gbps: 9.4, calibrated_error: 0.08 };
    line.update({ ...OF, ...known, notes: ['One is left out.'] });
    expect(line.node.textContent).toContain('calibrated9.40 ± 8 %');
    expect(line.node.title).toBe(
      'Means over iterations and ranks. One is left out.'
    );
  });

  it('shows what carries the collectives, or why that is unknown', () => {
    const line = new KeyFiguresBar(ENGLISH);
    line.update({ ...OF, transport: 'NCCL: RoCE mlx5_0:1, GPUDirect RDMA' });
    expect(line.node.textContent).toContain('overNCCL: RoCE mlx5_0:1');
    line.update({ ...OF, transport: { unknown: 'not reported' } });
    const unknown = line.node.querySelector('.jp-gw-Live-transport');
    expect(unknown?.getAttribute('aria-label')).toBe('not reported');
    line.update(OF);
    expect(unknown?.getAttribute('aria-label')).toContain('earlier version');
  });
});
