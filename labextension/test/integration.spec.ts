import { nullTranslator } from '@jupyterlab/translation';

import { KernelLink } from '../src/cluster/link';
import {
  distributedEdit,
  hasOtherMagic,
  isDistributed
} from '../src/commands/distributed';
import { Failures } from '../src/notifications/failures';
import { IListedCluster } from '../src/running/client';
import { RunningClusters } from '../src/running/manager';
import { statusOf } from '../src/statusbar/text';
import { cluster } from './fixtures';

const trans = nullTranslator.load('');

function state(change: Partial<KernelLink.IState>): KernelLink.IState {
  return {
    loaded: true,
    language: 'python',
    cluster: null,
    exposedShare: null,
    pending: null,
    error: '',
    ...change
  };
}

describe('the line that runs a cell on the ranks', () => {
  const edited = (source: string, on: boolean): string => {
    const edit = distributedEdit(source, on);
    return edit
      ? source.slice(0, edit.start) + edit.text + source.slice(edit.end)
      : source;
  };

  it.each(['x = 1', '', 'x\n\n# y\n'])('comes and goes in %j', source => {
    const on = edited(source, true);
    expect(on).toBe(`%%distributed\n${source}`);
    expect(isDistributed(on)).toBe(true);
    expect(edited(on, false)).toBe(source);
  });

  it('goes with its options, and leaves lines before it', () => {
    expect(edited('\n%%distributed --ranks 0\nx', false)).toBe('\nx');
    expect(edited('%%distributed', false)).toBe('');
  });

  it('leaves other magics and texts alone', () => {
    expect(hasOtherMagic('%%time\nx')).toBe(true);
    expect(edited('%%time\nx', true)).toBe('%%time\nx');
    expect(isDistributed('%%distributedly\nx')).toBe(false);
    expect(isDistributed('s = """\n%%distributed\n"""')).toBe(false);
    expect(edited('%%distributed\nx', true)).toBe('%%distributed\nx');
  });
});

describe('the status bar', () => {
  it('shows nothing without a cluster', () => {
    expect(statusOf(null, trans)).toBeNull();
    expect(statusOf(state({}), trans)).toBeNull();
    expect(statusOf(state({ cluster: cluster('stopped') }), trans)).toBeNull();
  });

  it('shows ranks, and the exposed share where it is known', () => {
    const up = { cluster: cluster('running') };
    expect(statusOf(state(up), trans)!.text).toBe('2 ranks');
    const share = state({ ...up, exposedShare: 0.312 });
    expect(statusOf(share, trans)!.text).toBe('2 ranks · 31 % exposed');
    const unknown = state({ ...up, exposedShare: { unknown: 'not heard' } });
    expect(statusOf(unknown, trans)!.text).toBe('2 ranks');
    expect(statusOf(unknown, trans)!.title).toContain('not heard');
    expect(
      statusOf(state({ cluster: cluster('starting', 1) }), trans)!.text
    ).toBe('1 rank · starting');
  });

  it('shows which ranks are lost', () => {
    const failed = cluster('failed', 4);
    expect(statusOf(state({ cluster: failed }), trans)).toMatchObject({
      text: 'cluster failed',
      isTrouble: true
    });
    failed.ranks[1].state = 'dead';
    const text = (): string =>
      statusOf(state({ cluster: failed, exposedShare: 0.5 }), trans)!.text;
    expect(text()).toBe('rank 1 lost');
    failed.ranks[3].state = 'dead';
    expect(text()).toBe('2 ranks lost: 1, 3');
  });
});

describe('failures', () => {
  it('are new once, and again after a recovery', () => {
    const failures = new Failures();
    const link = { state: state({}) };
    const check = (change: Partial<KernelLink.IState>): string | undefined => {
      link.state = state(change);
      return failures.check(link as KernelLink)?.text;
    };
    const failed = { ...cluster('failed'), message: 'rank 1 ended' };
    expect(check({ cluster: cluster('ready') })).toBeUndefined();
    expect(check({ cluster: failed })).toBe('rank 1 ended');
    expect(check({ cluster: failed, pending: 'stop' })).toBeUndefined();
    expect(check({ cluster: cluster('ready') })).toBeUndefined();
    expect(check({ cluster: failed })).toBe('rank 1 ended');
    expect(check({ error: 'no VM' })).toBe('no VM');
    expect(check({ error: 'no VM' })).toBeUndefined();
  });
});

describe('the section of the Running tab', () => {
  const listed = (change: Partial<IListedCluster>): IListedCluster => ({
    name: 'local-1',
    state: 'ready',
    message: '',
    ranks: 2,
    vms: ['vm1'],
    keep_s: null,
    kernel_id: 'k1',
    pid: null,
    ...change
  });
  let called: string[];
  let clusters: IListedCluster[];
  let manager: RunningClusters;

  beforeEach(async () => {
    called = [];
    clusters = [
      listed({}),
      listed({ name: 'local-2', state: 'kept', kernel_id: null, ranks: 1 })
    ];
    manager = new RunningClusters({
      list: async () => clusters,
      stop: async ({ name }) => {
        if (name === 'local-2') {
          throw new Error('did not stop');
        }
        clusters = clusters.filter(one => one.name !== name);
      },
      attach: name => called.push(`attach ${name}`),
      notebookOf: ({ kernel_id }) => (kernel_id ? 'train.ipynb' : ''),
      isCurrent: () => false,
      openNotebook: path => called.push(`open ${path}`),
      onError: message => called.push(message),
      trans
    });
    await changed();
  });

  afterEach(() => manager.dispose());

  const changed = (): Promise<void> =>
    new Promise(resolve => {
      const once = (): void => {
        manager.runningChanged.disconnect(once);
        resolve();
      };
      manager.runningChanged.connect(once);
    });

  it('lists clusters with their notebooks, and the kept ones', () => {
    const items = manager.running();
    expect(items.map(item => item.label())).toEqual([
      'local-1 · 2 ranks · ready · train.ipynb',
      'local-2 · 1 rank · kept, no notebook'
    ]);
    items.forEach(item => item.open!());
    expect(called).toEqual(['open train.ipynb', 'attach local-2']);
  });

  it('neither attaches to nor stops a cluster of another process', async () => {
    clusters = [listed({ state: 'held', kernel_id: null, pid: 4711 })];
    manager.refreshRunning();
    await changed();
    const [item] = manager.running();
    expect(item.label()).toBe('local-1 · 2 ranks · in use by process 4711');
    expect(item.shutdown).toBeUndefined();
    item.open!();
    manager.shutdownAll();
    expect(called).toEqual([]);
    expect(clusters).toHaveLength(1);
  });

  it('stops a cluster, and shows why one does not stop', async () => {
    const gone = changed();
    manager.shutdownAll();
    await gone;
    expect(manager.running()).toHaveLength(1);
    expect(called).toEqual(['did not stop']);
  });
});
