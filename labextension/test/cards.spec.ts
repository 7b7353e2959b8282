import { ServerConnection } from '@jupyterlab/services';
import { StateDB } from '@jupyterlab/statedb';
import { nullTranslator } from '@jupyterlab/translation';
import { framePromise } from '@jupyterlab/testing';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { VmList } from '../src/cluster/vms';
import { ResourcesClient } from '../src/resources/client';
import { MAX_BYTES } from '../src/resources/files';
import { LiveFeed } from '../src/resources/livefeed';
import { ResourcesModel } from '../src/resources/model';
import { DEFAULTS } from '../src/resources/preferences';
import { ResourcesView } from '../src/resources/view';
import { readKernelMessage } from '../src/schema/cluster';
import {
  bareSnapshot,
  cluster,
  finding,
  Json,
  sample,
  snapshot
} from './fixtures';

/** The part of a cluster that the cards use: what its kernel said. */
class Cluster {
  readonly stateChanged = new Signal<this, void>(this);
  link: Json = { vms: new VmList(), state: { cluster: null } };

  async refresh(): Promise<void> {
    // Says nothing new.
  }

  say(data: Json): void {
    const message = readKernelMessage(data, 'message');
    if (message.type === 'vms') {
      this.link.vms.hearVms(message.vms, message.findings, message.weakest);
    } else if (message.type === 'samples') {
      this.link.vms.hearSamples(message.samples);
    } else if (message.type === 'state') {
      this.link.state = { cluster: message.cluster };
      this.stateChanged.emit();
    }
  }
}

describe('the cards', () => {
  let kernel: Cluster;
  let state: StateDB;
  let answers: Record<string, Json>;
  let posted: { url: string; body: string }[];
  let model: ResourcesModel;
  let view: ResourcesView;
  let hear: (data: Json) => void;

  const make = (): void => {
    const serverSettings = ServerConnection.makeSettings({
      baseUrl: 'http://localhost/base/',
      fetch: async (request: RequestInfo | URL) => {
        const { method, url } = request as Request;
        const name = url.split('?')[0].split('/').pop()!;
        if (method === 'POST') {
          posted.push({ url, body: await (request as Request).text() });
        }
        return name in answers
          ? new Response(JSON.stringify(answers[name]), { status: 200 })
          : new Response(
              '{"message": "it is neither a topology nor a snapshot"}',
              { status: 400 }
            );
      }
    });
    model = new ResourcesModel({
      client: new ResourcesClient({ serverSettings }),
      feed: new LiveFeed({
        connect: () => {
          const socket: LiveFeed.ISocket = {
            onmessage: null,
            onclose: null,
            close: () => undefined
          };
          hear = data =>
            socket.onmessage!({ data: JSON.stringify(data) } as MessageEvent);
          return socket;
        }
      }),
      cluster: kernel as unknown as ResourcesModel.ICluster,
      state
    });
    view = new ResourcesView(model, nullTranslator.load(''));
    Widget.attach(view, document.body);
  };

  beforeEach(async () => {
    kernel = new Cluster();
    state = new StateDB();
    posted = [];
    answers = { snapshot: snapshot(2), findings: { findings: [] } };
    make();
    model.awake = true;
    await model.refresh();
  });

  afterEach(() => {
    view.dispose();
    model.dispose();
    kernel.link.vms.dispose();
  });

  const shown = async (): Promise<string> => {
    await framePromise();
    MessageLoop.flush();
    await view.renderPromise;
    return view.node.textContent!;
  };

  const cards = (): HTMLDetailsElement[] => [
    ...view.node.querySelectorAll<HTMLDetailsElement>('.jp-gw-Card')
  ];

  const toggle = async (card: HTMLDetailsElement): Promise<void> => {
    card.open = !card.open;
    card.dispatchEvent(new Event('toggle'));
    await shown();
  };

  const vm = (name: string, local = false): Json => ({
    name,
    local,
    snapshot: { ...snapshot(8), host: { ...snapshot(8).host, hostname: name } },
    findings: []
  });

  const tellOf = (count: number, across: Json[] = []): void =>
    kernel.say({
      type: 'vms',
      vms: Array.from({ length: count }, (_, n) => vm(`vm${n + 1}`, n === 0)),
      findings: across
    });

  const button = (name: string): HTMLButtonElement =>
    [...view.node.querySelectorAll('button')].find(
      one => (one.getAttribute('aria-label') ?? one.textContent) === name
    )!;

  it('are sixteen closed lines for 16 VMs, in order, each with its mean use and verdict', async () => {
    tellOf(16);
    const samples = Object.fromEntries(
      Array.from({ length: 15 }, (_, n) => [`vm${n + 2}`, sample(8)])
    );
    kernel.say({ type: 'samples', samples });
    hear(sample(2));
    expect(await shown()).toContain('16 VMs');
    expect(cards().map(card => card.open)).toEqual(new Array(16).fill(false));
    expect(cards().map(card => card.querySelector('h4')!.textContent)).toEqual(
      Array.from({ length: 16 }, (_, n) => `vm${n + 1}`)
    );
    expect(
      cards().map(card => card.querySelector('.jp-gw-Use-number')!.textContent)
    ).toEqual(['87 %', ...new Array(15).fill('84 %')]);
    expect(
      view.node.querySelectorAll('path.jp-gw-Sparkline-line')
    ).toHaveLength(16);
    expect(view.node.querySelector('.jp-gw-Card-body')).toBeNull();
  });

  it('draws with a sample only the card of its machine', async () => {
    tellOf(3);
    kernel.say({
      type: 'samples',
      samples: { vm2: sample(8), vm3: sample(8) }
    });
    await shown();
    const before = cards().map(card => card.innerHTML);
    const next = { ...sample(8), time: 1.7e9 + 1 };
    next.gpus[0].utilization_percent = 3;
    kernel.say({ type: 'samples', samples: { vm2: next } });
    await shown();
    expect(cards().map((card, n) => card.innerHTML === before[n])).toEqual([
      true,
      false,
      true
    ]);
  });

  it('say which VM is lost and why, in place of its figures', async () => {
    tellOf(3);
    kernel.say({
      type: 'samples',
      samples: { vm2: { unknown: 'no answer for 12 s' }, vm3: sample(8) }
    });
    await shown();
    const lost = cards()[1];
    expect(lost.querySelector('.jp-gw-Card-line')!.textContent).toBe(
      'no answer for 12 s'
    );
    expect(lost.querySelector('.jp-gw-Verdict')!.getAttribute('title')).toBe(
      'no answer for 12 s'
    );
    expect(lost.querySelector('.jp-gw-Use-number')!.textContent).toContain('–');
    expect(cards()[2].textContent).toContain('84 %');
  });

  it('have no verdict on a VM of which nothing is known', async () => {
    const unknown = { ...vm('vm2'), snapshot: { unknown: 'no agent there' } };
    kernel.say({ type: 'vms', vms: [vm('vm1', true), unknown], findings: [] });
    await shown();
    const [, card] = cards();
    expect(card.querySelector('.jp-gw-Verdict')).toBeNull();
    expect(card.textContent).toContain('Hardware unknown: no agent there.');
  });

  it('stay as a person left them, after a reload of the page too', async () => {
    tellOf(16);
    await shown();
    await toggle(cards()[4]);
    expect(cards()[4].open).toBe(true);
    view.dispose();
    model.dispose();
    make();
    tellOf(16);
    await shown();
    expect(cards().filter(card => card.open)).toEqual([cards()[4]]);
  });

  it('keep the focus while figures change', async () => {
    tellOf(3);
    await shown();
    const summary = cards()[1].querySelector('summary')!;
    summary.tabIndex = 0; // jsdom takes a summary for no control
    summary.focus();
    kernel.say({ type: 'samples', samples: { vm2: sample(8) } });
    tellOf(4);
    await shown();
    expect(document.activeElement).toBe(summary);
  });

  it('show what is wrong across the VMs before them, with a setting to copy', async () => {
    const fix = 'Set `NCCL_IB_GID_INDEX=3` on all VMs.';
    tellOf(2, [{ ...finding, fix }]);
    await shown();
    const list = view.node.querySelector(
      '[aria-label="Findings across the VMs"]'
    )!;
    expect(list.textContent).toContain('Set NCCL_IB_GID_INDEX=3 on all VMs.');
    const copied = jest.fn().mockResolvedValue(undefined);
    Object.assign(navigator, { clipboard: { writeText: copied } });
    button('Copy NCCL_IB_GID_INDEX=3').click();
    await shown();
    expect(copied).toHaveBeenCalledWith('NCCL_IB_GID_INDEX=3');
    expect(await shown()).toContain('copied');
  });

  it('say which rank uses which GPU and NIC, and what a process holds', async () => {
    const told = cluster('running', 2);
    told.ranks[1].gpu = '1 (A100-40C)';
    kernel.say({ type: 'state', cluster: told });
    tellOf(1);
    hear(sample(2));
    await shown();
    const gpu = view.node.querySelector('[aria-label="GPU 1"]')!;
    expect(gpu.querySelector('.jp-gw-Tag')!.textContent).toBe('rank 1');
    const table = view.node.querySelector(
      '[aria-label="Each rank with its GPU and NIC"] tbody'
    )!;
    expect(table.textContent).toBe('0CPUlo11 (A100-40C)lo');
    const rows = view.node.querySelectorAll(
      '[aria-label="Processes and what they use"] tbody tr'
    );
    expect(rows[0].textContent).toBe('rank 0031.04.00103');
    expect(rows[1].textContent).toMatch(/^train\.ipynb/);
  });

  it('point at what is wrong now: no licence, held clocks, idle with memory', async () => {
    answers.snapshot.gpus[0].licence = { state: 'unlicensed' };
    await model.refresh();
    hear(sample(2, { held_by: ['idle', 'power cap'], idle_s: 754 }));
    await shown();
    const marks = [
      ...view.node.querySelectorAll('[aria-label="GPU 0"] .jp-gw-Mark')
    ];
    expect(marks.map(one => one.textContent)).toEqual([
      'without a licence',
      'clocks reduced by: power cap',
      'idle for 12 min with memory allocated'
    ]);
    expect(
      view.node.querySelector('[aria-label="GPU 1"] .jp-gw-Mark')
    ).toBeNull();
  });

  it('show congestion and errors only where there are some', async () => {
    hear(sample(2));
    expect(await shown()).not.toContain('a second');
    const now = sample(2);
    now.nics[0].cnp_handled_per_s = 120;
    now.nics[0].errors.out_of_sequence = 2.5;
    hear(now);
    const text = await shown();
    expect(text).toContain('congestion notices handled: 120 per second');
    expect(text).toContain('out_of_sequence: 2.50 per second');
    expect(text).not.toContain('rx_dropped');
  });

  it('go by the settings at once', async () => {
    hear(sample(2));
    expect(await shown()).toContain('1 virtual interface: docker0');
    model.preferences = {
      ...DEFAULTS,
      rates: 'bytes',
      virtualInterfaces: true,
      openSections: { ...DEFAULTS.openSections, gpus: false }
    };
    const text = await shown();
    expect(text).toMatch(/RDMA tx7\.66GB\/s/);
    expect(view.node.querySelector('[aria-label="docker0"]')).not.toBeNull();
    expect(view.node.querySelector('[aria-label="GPU 0"]')).toBeNull();
    button('GPUs').click();
    await shown();
    expect(view.node.querySelector('[aria-label="GPU 0"]')).not.toBeNull();
    expect(button('GPUs').getAttribute('aria-expanded')).toBe('true');
  });

  it('claim nothing well of which a topology file does not tell', async () => {
    const told = snapshot(2) as { probes: object };
    const host = {
      status: 'absent',
      reason: 'only the topology file was read'
    };
    const read = { ...told, probes: { ...told.probes, host } };
    answers.read = { name: 'topo.xml', snapshot: read, findings: [] };
    await model.files.open(new File(['<system/>'], 'topo.xml'));
    await shown();
    const verdict = cards()[1].querySelector('.jp-gw-Verdict')!;
    expect(verdict.textContent).toBe('–');
    expect(verdict.getAttribute('title')).toBe(
      'nothing found wrong in what the file describes'
    );
  });

  it('show a file beside the machines until it is closed', async () => {
    answers.read = { name: 'topo.xml', snapshot: bareSnapshot(), findings: [] };
    await model.files.open(new File(['<system/>'], 'topo.xml'));
    expect(await shown()).toContain('file: topo.xml');
    expect(posted).toEqual([
      {
        url: expect.stringContaining(
          'http://localhost/base/workbench/api/read?name=topo.xml'
        ),
        body: '<system/>'
      }
    ]);
    expect(cards()).toHaveLength(2);
    expect(cards()[1].open).toBe(true);
    expect(cards()[1].querySelector('.jp-gw-Sparkline')).toBeNull();
    button('Close topo.xml').click();
    expect(await shown()).not.toContain('topo.xml');
    expect(cards()).toHaveLength(1);
  });

  it('say in plain words why a file cannot be shown, and lose nothing', async () => {
    await model.files.open(new File(['?'], 'photo.xml'));
    expect(await shown()).toContain(
      'photo.xml cannot be shown: it is neither a topology nor a snapshot'
    );
    expect(cards()).toHaveLength(1);
    const large = new File([new Uint8Array(MAX_BYTES + 1)], 'large.json');
    await model.files.open(large);
    expect(await shown()).toContain('large.json is larger than 4 MiB');
    expect(posted).toHaveLength(1);
    button('Dismiss').click();
    expect(await shown()).not.toContain('large.json');
  });
});
