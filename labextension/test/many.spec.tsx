import { ServerConnection } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { framePromise } from '@jupyterlab/testing';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { ResourcesClient } from '../src/resources/client';
import { LiveFeed } from '../src/resources/livefeed';
import { ResourcesModel } from '../src/resources/model';
import { ResourcesView } from '../src/resources/view';
import { readSnapshot } from '../src/schema/snapshot';
import { placeRanks } from '../src/topology/ranks';
import { MAX_DRAWN, readGraph } from '../src/topology/read';
import { finding, Json, rdmaNic, sample, snapshot } from './fixtures';
import { plain } from './topology-fixtures';

const trans = nullTranslator.load('');

// A hundred devices, drawn five times.
jest.setTimeout(60_000);

describe('what is listed and drawn at once', () => {
  let model: ResourcesModel;
  let view: ResourcesView;
  let say: (data: Json) => void;

  const open = async (
    answer: Json,
    findings: Json[] = [],
    read?: Json
  ): Promise<void> => {
    const answers: Record<string, Json> = {
      snapshot: answer,
      findings: { findings },
      read: { name: 'topo.xml', snapshot: read, findings: [] }
    };
    const serverSettings = ServerConnection.makeSettings({
      baseUrl: 'http://localhost/base/',
      fetch: async (request: RequestInfo | URL) => {
        const name = (request as Request).url.split('?')[0].split('/').pop()!;
        return new Response(JSON.stringify(answers[name]), { status: 200 });
      }
    });
    const socket: LiveFeed.ISocket = {
      onmessage: null,
      onclose: null,
      close: () => undefined
    };
    say = data =>
      socket.onmessage!({ data: JSON.stringify(data) } as MessageEvent);
    model = new ResourcesModel({
      client: new ResourcesClient({ serverSettings }),
      feed: new LiveFeed({ connect: () => socket })
    });
    view = new ResourcesView(model, trans);
    Widget.attach(view, document.body);
    model.awake = true;
    await model.refresh();
    if (read) {
      await model.files.open(new File(['x'], 'topo.xml'));
    }
    await shown();
  };

  const shown = async (): Promise<string> => {
    await framePromise();
    MessageLoop.flush();
    await view.renderPromise;
    return view.node.textContent!;
  };

  const button = (words: RegExp): HTMLButtonElement =>
    [...view.node.querySelectorAll('button')].find(one =>
      words.test(one.textContent!)
    )!;

  const groups = (name: RegExp): number =>
    [...view.node.querySelectorAll('.jp-gw-Device')].filter(one =>
      name.test(one.getAttribute('aria-label')!)
    ).length;

  afterEach(() => {
    view.dispose();
    model.dispose();
  });

  it('is the first GPUs and NICs, and more on demand', async () => {
    const many = snapshot(50);
    many.nics = Array.from({ length: 60 }, (_, n) => ({
      ...rdmaNic,
      name: `ib${n}`
    }));
    await open(many);
    expect([groups(/^GPU/), groups(/^ib/)]).toEqual([16, 24]);
    button(/34 more GPUs: show 16/).click();
    await shown();
    expect(groups(/^GPU/)).toBe(32);
    button(/18 more GPUs/).click();
    await shown();
    button(/^2 more GPUs$/).click();
    await shown();
    expect(groups(/^GPU/)).toBe(50);
    button(/Show fewer GPUs/).click();
    await shown();
    expect([groups(/^GPU/), groups(/^ib/)]).toEqual([16, 24]);
  });

  it('has no button where all fit', async () => {
    await open(snapshot(16));
    expect(view.node.querySelector('.jp-gw-More')).toBeNull();
  });

  it('is the worst findings', async () => {
    const findings = Array.from({ length: 90 }, (_, n) => ({
      ...finding,
      subject: `GPU ${n}`,
      severity: n === 89 ? 'error' : 'info'
    }));
    await open(snapshot(1), findings);
    const list = view.node.querySelectorAll('.jp-gw-Finding');
    expect(list.length).toBe(20);
    expect(list[0].textContent).toContain('GPU 89');
    expect(button(/70 more findings/)).toBeDefined();
  });

  it('is one row for idle kernels, each on demand', async () => {
    await open(snapshot(0));
    const idle = {
      pid: 1,
      name: 'python3',
      kind: 'kernel',
      kernel_id: 'k',
      notebook: null,
      cluster: null,
      rank: null,
      cpu_percent: 0,
      memory_bytes: 2 ** 29,
      gpus: []
    };
    const named = { ...idle, pid: 2, notebook: 'a/b.ipynb' };
    const busy = { ...idle, pid: 3, cpu_percent: 88 };
    const others = [5, 6, 7, 8].map(pid => ({ ...idle, pid }));
    say({ ...sample(0), processes: [named, busy, ...others] });
    await shown();
    const names = (): string[] =>
      [...view.node.querySelectorAll('.jp-gw-Table-name')].map(
        one => one.textContent!
      );
    expect(names()).toEqual(['b.ipynb', 'kernel 3', '4 idle kernels']);
    const group = button(/4 idle kernels/);
    const row = group.closest('tr')!;
    expect(row.textContent).toContain('2.0');
    expect(group.getAttribute('aria-expanded')).toBe('false');
    const members = document.getElementById(
      group.getAttribute('aria-controls')!
    )!;
    expect(members.hidden).toBe(true);
    group.click();
    await shown();
    expect(group.getAttribute('aria-expanded')).toBe('true');
    expect(members.hidden).toBe(false);
    expect(names().slice(3)).toEqual([
      'kernel 5',
      'kernel 6',
      'kernel 7',
      'kernel 8'
    ]);
    // One alone is as short as its group would be.
    say({ ...sample(0), processes: [named, { ...idle, pid: 9 }] });
    await shown();
    expect(names()).toEqual(['b.ipynb', 'kernel 9']);
  });

  it('is what a topology file tells, without a row of dashes', async () => {
    await open(snapshot(1), [], plain('sixteen-from-a-file'));
    const file = view.node.querySelector('.jp-gw-mod-file')!;
    expect(file.textContent).not.toContain('unknown name');
    expect(file.textContent).not.toContain('Memory');
    expect(file.querySelectorAll('.jp-gw-Node').length).toBeGreaterThan(16);
    expect(file.textContent).not.toContain('GPUs16');
    expect(
      file.querySelectorAll('.jp-gw-Device .jp-gw-Device-size .jp-gw-Dash')
    ).toHaveLength(0);
  });
});

describe('a drawing of many devices', () => {
  const many = (gpus: number, nics: number): Json => {
    const host = plain('hgx-h100-host');
    const copies = (one: Json, count: number): Json[] =>
      Array.from({ length: count }, (_, n) => ({ ...one, index: n }));
    return readSnapshot(
      {
        ...host,
        pcie: { ...host.pcie, trees: [] },
        gpus: copies(host.gpus[0], gpus),
        nics: copies(
          host.nics.find((one: Json) => one.kind === 'rdma'),
          nics
        )
      },
      'snapshot'
    );
  };

  it.each([
    [200, 8, 56, 8],
    [200, 200, 32, 32],
    [4, 200, 4, 60],
    [30, 30, 30, 30]
  ])('of %i GPUs and %i NICs has %i and %i', (gpus, nics, a, b) => {
    const graph = readGraph(many(gpus, nics));
    const count = (kind: string): number =>
      graph.devices.filter(one => one.kind === kind).length;
    expect([count('gpu'), count('nic')]).toEqual([a, b]);
    expect(graph.left).toBe(gpus + nics - a - b);
    expect(graph.devices.length).toBeLessThanOrEqual(MAX_DRAWN);
  });

  it('has more of them on demand, in the same places', () => {
    const snapshot = many(200, 8);
    const [some, more] = [readGraph(snapshot), readGraph(snapshot, 128)];
    expect(more.devices.length).toBe(128);
    const ids = more.devices.map(one => one.id);
    expect(some.devices.every(one => ids.includes(one.id))).toBe(true);
  });

  it('takes no rank for one on CPUs whose GPU is left out', () => {
    const graph = readGraph(many(200, 8));
    const ranks = [3, 150, 'CPU'].map((gpu, rank) => ({ rank, gpu, nic: 'x' }));
    expect(placeRanks(ranks, graph).map(one => one.isLeftOut)).toEqual([
      false,
      true,
      false
    ]);
  });
});
