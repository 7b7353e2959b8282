import { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { COMM_ID, KernelLink } from '../src/cluster/link';
import { cluster, Json, sample, snapshot } from './fixtures';

/** The part of a kernel connection that the link uses, with a kernel behind it. */
class FakeKernel {
  readonly id = 'kernel-1';
  readonly statusChanged = new Signal<this, Kernel.Status>(this);
  readonly disposed = new Signal<this, void>(this);
  readonly isDisposed = false;
  language = 'python';
  supportsSubshells = true;
  /** Whether its extension is loaded, and so its comm there. */
  loaded = false;
  loadFails = '';
  subshell: Promise<void> = Promise.resolve();
  sent: unknown[] = [];
  executed: string[] = [];
  comms: FakeComm[] = [];

  get info(): Promise<unknown> {
    return Promise.resolve({ language_info: { name: this.language } });
  }

  createComm(): FakeComm {
    this.comms.push(new FakeComm(this));
    return this.comms[this.comms.length - 1];
  }

  async requestCommInfo(): Promise<unknown> {
    return {
      content: { status: 'ok', comms: this.loaded ? { [COMM_ID]: {} } : {} }
    };
  }

  requestExecute({ code }: { code: string }): unknown {
    this.executed.push(code);
    this.loaded = !this.loadFails;
    const content = this.loadFails
      ? {
          status: 'error',
          ename: 'ModuleNotFoundError',
          evalue: this.loadFails
        }
      : { status: 'ok' };
    return { done: Promise.resolve({ content }) };
  }

  say(data: unknown): void {
    this.comms[this.comms.length - 1].onMsg({ content: { data } });
  }

  restart(): void {
    this.loaded = false;
    this.statusChanged.emit('restarting');
    this.comms.forEach(comm => comm.dispose());
    this.statusChanged.emit('idle');
  }
}

class FakeComm {
  isDisposed = false;
  onMsg: (message: unknown) => void = () => undefined;

  constructor(private _kernel: FakeKernel) {}

  get subshellStarted(): Promise<void> {
    return this._kernel.subshell;
  }

  send(data: unknown): void {
    this._kernel.sent.push(data);
  }

  dispose(): void {
    this.isDisposed = true;
  }
}

const isLive = (request: unknown): boolean =>
  (request as { type: string }).type === 'live';

const settled = (): Promise<void> =>
  new Promise(resolve => setTimeout(resolve));

describe('KernelLink', () => {
  let kernel: FakeKernel;

  const join = async (): Promise<KernelLink> => {
    const link = new KernelLink({
      kernel: kernel as unknown as Kernel.IKernelConnection
    });
    await settled();
    return link;
  };

  beforeEach(() => {
    kernel = new FakeKernel();
  });

  it('sends nothing to a kernel without the extension', async () => {
    const link = await join();
    expect(kernel.sent).toEqual([]);
    expect(link.state).toMatchObject({ loaded: false, cluster: null });
  });

  it('asks a kernel with the extension for its cluster', async () => {
    kernel.loaded = true;
    const link = await join();
    expect(kernel.sent).toEqual([{ type: 'refresh' }]);
    kernel.say({ type: 'state', cluster: cluster('running', 4) });
    expect(link.state.cluster).toMatchObject({ state: 'running', n: 4 });
  });

  it('hears a kernel that cannot answer, as after a reload in the middle of a cell', async () => {
    kernel.requestCommInfo = () => new Promise(() => undefined);
    const link = await join();
    kernel.say({ type: 'state', cluster: cluster('running') });
    expect(link.state).toMatchObject({
      loaded: true,
      cluster: { state: 'running' }
    });
  });

  it('loads the extension before the first start, silently and once', async () => {
    const link = await join();
    await link.start({ ranks: 3 });
    expect(kernel.executed).toEqual(['%load_ext workbench']);
    expect(kernel.sent).toEqual([{ type: 'start', options: { n: 3 } }]);
    kernel.say({ type: 'state', cluster: cluster('ready') });
    await link.stop();
    await link.start({ ranks: 2 });
    expect(kernel.executed).toHaveLength(1);
  });

  it('says why the extension does not load, and asks for nothing', async () => {
    kernel.loadFails = "No module named 'workbench'";
    const link = await join();
    await link.start({ ranks: 2 });
    expect(link.state.pending).toBeNull();
    expect(link.state.error).toContain("No module named 'workbench'");
    expect(kernel.sent).toEqual([]);
  });

  it('sends only when the subshell is there, else a cell would hold the request up', async () => {
    let begin: () => void = () => undefined;
    kernel.loaded = true;
    kernel.subshell = new Promise(resolve => (begin = resolve));
    const link = await join();
    void link.stop();
    await settled();
    expect(kernel.sent).toEqual([]);
    begin();
    await settled();
    expect(kernel.sent).toContainEqual({ type: 'stop' });
  });

  it('is pending until the cluster takes the request up', async () => {
    kernel.loaded = true;
    const link = await join();
    kernel.say({ type: 'state', cluster: cluster('ready') });
    await link.stop();
    kernel.say({ type: 'state', cluster: cluster('ready') });
    expect(link.state.pending).toBe('stop');
    kernel.say({ type: 'state', cluster: cluster('stopping') });
    expect(link.state.pending).toBeNull();
  });

  it('shows what the kernel says of a failed request', async () => {
    const link = await join();
    await link.start({ ranks: 13 });
    kernel.say({
      type: 'error',
      message: '13 ranks were asked for, 12 came up'
    });
    expect(link.state).toMatchObject({
      pending: null,
      error: '13 ranks were asked for, 12 came up'
    });
  });

  it('gives all who wait for the live view one answer', async () => {
    kernel.loaded = true;
    const link = await join();
    const both = Promise.all([link.openLive(), link.openLive()]);
    await settled();
    expect(kernel.sent.filter(one => isLive(one))).toHaveLength(1);
    kernel.say({ type: 'error', message: 'no', request: 'resize' });
    kernel.say({ type: 'live', snapshot: { a: 1 } });
    expect(await both).toEqual([{ a: 1 }, { a: 1 }]);
    const next = link.openLive();
    await settled();
    kernel.say({ type: 'error', message: 'no cluster', request: 'live' });
    await expect(next).rejects.toThrow('no cluster');
  });

  it.each([
    ['restarts', (): void => kernel.restart()],
    ['is left', (link: KernelLink): void => link.dispose()]
  ])('waits for no live view of a kernel that %s', async (_, end) => {
    kernel.loaded = true;
    const link = await join();
    const waits = link.openLive();
    await settled();
    end(link);
    await expect(waits).rejects.toThrow('restarted in the meantime');
  });

  it('keeps an error until it is asked again, or a cluster comes up', async () => {
    const link = await join();
    kernel.say({ type: 'state', cluster: cluster('ready') });
    kernel.say({ type: 'error', message: 'no' });
    kernel.say({ type: 'state', cluster: cluster('running') });
    kernel.say({ type: 'state', cluster: cluster('stopped') });
    expect(link.state.error).toBe('no');
    kernel.say({ type: 'state', cluster: cluster('ready') });
    expect(link.state.error).toBe('');
  });

  it('forgets the cluster of a kernel that restarts, and joins the new one', async () => {
    kernel.loaded = true;
    const link = await join();
    kernel.say({ type: 'state', cluster: cluster('ready') });
    kernel.restart();
    await settled();
    expect(link.state).toMatchObject({ loaded: false, cluster: null });
    expect(kernel.comms).toHaveLength(2);
    kernel.say({ type: 'state', cluster: cluster('starting') });
    expect(link.state.cluster).toMatchObject({ state: 'starting' });
  });

  it('keeps away from a kernel of another language', async () => {
    kernel.language = 'R';
    const link = await join();
    expect(link.state.language).toBe('R');
    expect(kernel.sent).toEqual([]);
  });

  const watches = (): unknown[] =>
    kernel.sent.filter(one => (one as { type: string }).type === 'watch');
  const vm = (name: string, local = false): Json => ({
    name,
    local,
    snapshot: snapshot(1),
    findings: []
  });

  it('watches only where there is a cluster and somebody looks, and says when they do no more', async () => {
    kernel.loaded = true;
    const link = await join();
    link.watched = true;
    kernel.say({ type: 'state', cluster: null });
    await settled();
    expect(watches()).toEqual([]);
    kernel.say({ type: 'state', cluster: cluster('ready') });
    await settled();
    expect(watches()).toEqual([{ type: 'watch', on: true }]);
    link.watched = false;
    await settled();
    expect(watches()).toEqual([
      { type: 'watch', on: true },
      { type: 'watch', on: false }
    ]);
  });

  it('renews the watch every 4 s while there are other VMs, and ends with the link', async () => {
    jest.useFakeTimers();
    try {
      kernel.loaded = true;
      const link = new KernelLink({
        kernel: kernel as unknown as Kernel.IKernelConnection
      });
      link.watched = true;
      await jest.advanceTimersByTimeAsync(0);
      kernel.say({ type: 'state', cluster: cluster('ready') });
      await jest.advanceTimersByTimeAsync(8000);
      expect(watches()).toHaveLength(3);
      kernel.say({ type: 'vms', vms: [vm('vm1', true)], findings: [] });
      await jest.advanceTimersByTimeAsync(60_000);
      expect(watches()).toHaveLength(3);
      kernel.say({
        type: 'vms',
        vms: [vm('vm1', true), vm('vm2')],
        findings: []
      });
      await jest.advanceTimersByTimeAsync(8000);
      expect(watches()).toHaveLength(5);
      link.dispose();
      await jest.advanceTimersByTimeAsync(60_000);
      expect(watches()).toHaveLength(5);
    } finally {
      jest.useRealTimers();
    }
  });

  it('after a reload in mid-cell hears samples while one watch waits for the subshell', async () => {
    jest.useFakeTimers();
    try {
      let begin: () => void = () => undefined;
      kernel.subshell = new Promise(resolve => (begin = resolve));
      const link = new KernelLink({
        kernel: kernel as unknown as Kernel.IKernelConnection
      });
      link.watched = true;
      kernel.say({ type: 'state', cluster: cluster('running') });
      kernel.say({ type: 'samples', samples: { vm2: sample(1) } });
      await jest.advanceTimersByTimeAsync(30_000);
      const [entry] = link.vms.entries;
      expect(entry.name).toBe('vm2');
      expect(entry.machine!.snapshot).toHaveProperty('unknown');
      expect(entry.machine!.sample!.cpu.percent).toBe(37.4);
      expect(watches()).toEqual([]);
      begin();
      await jest.advanceTimersByTimeAsync(0);
      expect(watches()).toHaveLength(1);
      link.dispose();
    } finally {
      jest.useRealTimers();
    }
  });

  it('forgets the VMs of a kernel that restarts, and watches the next cluster', async () => {
    kernel.loaded = true;
    const link = await join();
    link.watched = true;
    kernel.say({ type: 'state', cluster: cluster('ready') });
    kernel.say({ type: 'vms', vms: [vm('vm2')], findings: [] });
    await settled();
    kernel.restart();
    await settled();
    expect(link.vms.entries).toEqual([]);
    kernel.say({ type: 'state', cluster: cluster('ready') });
    await settled();
    expect(watches()).toHaveLength(2);
    link.dispose();
  });

  it('takes no sample that was on its way as the watch ended', async () => {
    kernel.loaded = true;
    const link = await join();
    kernel.say({ type: 'samples', samples: { vm2: sample(1) } });
    expect(link.vms.entries).toEqual([]);
  });

  it('is silent about a cluster that is told again and has not changed', async () => {
    const link = await join();
    kernel.say({ type: 'state', cluster: cluster('running') });
    const before = link.state.cluster;
    kernel.say({ type: 'state', cluster: cluster('running') });
    expect(link.state.cluster).toBe(before);
  });
});
