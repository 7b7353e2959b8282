import { VmList } from '../src/cluster/vms';
import { pathOf } from '../src/common/sparkline';
import { Machine } from '../src/resources/machine';
import { readKernelMessage } from '../src/schema/cluster';
import { readServerSample } from '../src/schema/sample';
import { readSnapshot } from '../src/schema/snapshot';
import { Json, sample, snapshot } from './fixtures';

const at = (time: number): ReturnType<typeof readServerSample> =>
  readServerSample({ ...sample(1), time }, 'sample');

describe('Machine', () => {
  let machine: Machine;

  beforeEach(() => {
    machine = new Machine({ key: 'vm/vm2', kind: 'vm', name: 'vm2' });
  });

  it('has a gap for each second that went by unheard, so that a line is true to the time', () => {
    machine.take(at(100));
    machine.take(at(103));
    expect(machine.history('cpu')).toEqual([37.4, null, null, 37.4]);
  });

  it('counts a second in which the machine did not answer once', () => {
    machine.take(at(100));
    machine.take({ unknown: 'no answer' });
    machine.take({ unknown: 'no answer' });
    machine.take(at(103));
    expect(machine.history('cpu')).toEqual([37.4, null, null, 37.4]);
  });

  it('keeps the last figures of a machine that does not answer, and why', () => {
    machine.take(at(100));
    machine.take({ unknown: 'no answer for 12 s' });
    expect(machine.sample!.cpu.percent).toBe(37.4);
    expect(machine.trouble).toBe('no answer for 12 s');
    machine.take(at(102));
    expect(machine.trouble).toBe('');
  });

  it('cuts and lengthens its histories', () => {
    for (let time = 0; time < 100; time++) {
      machine.take(at(time));
    }
    expect(machine.history('cpu')).toHaveLength(60);
    machine.length = 30;
    expect(machine.history('cpu')).toHaveLength(30);
    machine.length = 120;
    machine.take(at(100));
    expect(machine.history('cpu')).toHaveLength(31);
  });

  it('tells MIG devices of one GPU apart by their UUIDs', () => {
    const told = snapshot(2);
    const now = sample(2);
    for (const gpus of [told.gpus, now.gpus]) {
      gpus[1].index = 0;
    }
    machine.take(readServerSample(now, 'sample'));
    const [first, second] = readSnapshot(told, 'snapshot').gpus;
    expect(machine.gpuSample(first)!.utilization_percent).toBe(87);
    expect(machine.gpuSample(second)!.utilization_percent).toBe(86);
    expect(machine.gpuHistory(second)).toEqual([86]);
  });

  it('has the mean of its GPUs where some are not known', () => {
    const now = sample(3);
    now.gpus[0].utilization_percent = { unknown: 'lost' };
    machine.take(readServerSample(now, 'sample'));
    expect(machine.history('gpus')).toEqual([85.5]);
  });
});

describe('VmList', () => {
  let vms: VmList;

  const vm = (name: string, local = false): Json => ({
    name,
    local,
    snapshot: snapshot(1),
    findings: []
  });

  const hear = (data: Json): void => {
    const message = readKernelMessage(data, 'message');
    if (message.type === 'vms') {
      vms.hearVms(message.vms, message.findings);
    } else if (message.type === 'samples') {
      vms.hearSamples(message.samples);
    }
  };

  const machine = (name: string): Machine =>
    vms.entries.find(entry => entry.name === name)!.machine!;

  beforeEach(() => {
    jest.useFakeTimers();
    vms = new VmList();
  });

  afterEach(() => {
    vms.dispose();
    jest.useRealTimers();
  });

  it('keeps the order of the cluster, and the histories of a VM that stays', () => {
    hear({ type: 'vms', vms: [vm('b'), vm('a', true), vm('c')], findings: [] });
    hear({ type: 'samples', samples: { b: sample(1), c: sample(1) } });
    hear({ type: 'vms', vms: [vm('c'), vm('b'), vm('d')], findings: [] });
    expect(vms.entries.map(entry => entry.name)).toEqual(['c', 'b', 'd']);
    expect(machine('b').history('cpu')).toEqual([37.4]);
    expect(machine('d').history('cpu')).toEqual([]);
  });

  it("has no machine of its own for the kernel's, which the server tells of", () => {
    hear({ type: 'vms', vms: [vm('a', true)], findings: [] });
    expect(vms.entries).toEqual([{ name: 'a', machine: null }]);
  });

  it('lets a VM that sends nonsense cost its own card only', () => {
    const spoilt = { ...vm('b'), snapshot: { version: 99 } };
    hear({ type: 'vms', vms: [spoilt, vm('c')], findings: [] });
    expect(machine('b').snapshot).toMatchObject({
      unknown: expect.stringContaining('version 99')
    });
    const wrong = { ...sample(1), cpu: 'much' };
    hear({ type: 'samples', samples: { b: wrong, c: sample(1) } });
    expect(machine('b').trouble).toContain('samples.b.cpu');
    expect(machine('c').trouble).toBe('');
  });

  it('says that figures are old after 5 s without any', () => {
    hear({ type: 'vms', vms: [vm('b')], findings: [] });
    hear({ type: 'samples', samples: { b: sample(1) } });
    jest.advanceTimersByTime(4999);
    expect(machine('b').trouble).toBe('');
    jest.advanceTimersByTime(1);
    expect(machine('b').trouble).toContain('no figures for 5 s');
  });

  it("takes a samples' message without its samples for what it is", () => {
    expect(() => hear({ type: 'samples' })).toThrow('message.samples');
    expect(() => hear({ type: 'vms', vms: [{}], findings: [] })).toThrow(
      'message.vms[0].name'
    );
  });
});

describe('a sparkline', () => {
  it('is one path, filled below the newest run; a gap is neither line nor fill', () => {
    expect(pathOf([], 1, 3)).toBe('');
    expect(pathOf([0, 1], 1, 3)).toBe('M300,150L600,10H610V170H300');
    expect(pathOf([1, null, 1], 1, 3)).toBe('M0,10L0,10M600,10H610V170H600');
  });
});
