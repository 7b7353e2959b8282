import { ServerConnection } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { framePromise } from '@jupyterlab/testing';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { liveUrl, ResourcesClient } from '../src/resources/client';
import { LiveFeed } from '../src/resources/livefeed';
import { ResourcesModel } from '../src/resources/model';
import { ResourcesView } from '../src/resources/view';
import { bareSnapshot, finding, sample, snapshot } from './fixtures';

/** A server that answers with what it is given, over Lab's own connection. */
class Server {
  answers: Record<string, unknown> = {};
  asked: string[] = [];

  readonly settings = ServerConnection.makeSettings({
    baseUrl: 'http://localhost/base/',
    wsUrl: 'ws://localhost/base/',
    token: 's3 cret',
    appendToken: true,
    fetch: async (request: RequestInfo | URL) => {
      const full = request instanceof Request ? request.url : String(request);
      const url = full.split('?')[0];
      const name = url.split('/').pop()!;
      this.asked.push(url);
      return name in this.answers
        ? new Response(JSON.stringify(this.answers[name]), { status: 200 })
        : new Response('{"message": "out of order"}', { status: 503 });
    }
  });
}

describe('the resources', () => {
  let server: Server;
  let socket: LiveFeed.ISocket & { closed: boolean };
  let model: ResourcesModel;
  let view: ResourcesView;

  const say = (data: unknown): void =>
    socket.onmessage!({ data: JSON.stringify(data) } as MessageEvent);

  const shown = async (): Promise<string> => {
    await framePromise();
    MessageLoop.flush();
    await view.renderPromise;
    return view.node.textContent!;
  };

  beforeEach(() => {
    server = new Server();
    model = new ResourcesModel({
      client: new ResourcesClient({ serverSettings: server.settings }),
      feed: new LiveFeed({
        connect: () => {
          socket = {
            onmessage: null,
            onclose: null,
            closed: false,
            close: () => {
              socket.closed = true;
            }
          };
          return socket;
        }
      })
    });
    view = new ResourcesView(model, nullTranslator.load(''));
    Widget.attach(view, document.body);
  });

  afterEach(() => {
    view.dispose();
    model.dispose();
  });

  const wake = async (): Promise<void> => {
    model.awake = true;
    await model.refresh();
  };

  it('asks nobody while asleep', async () => {
    expect(await shown()).toContain('Loading…');
    expect(server.asked).toEqual([]);
  });

  it('goes back to sleep: the socket is closed', async () => {
    server.answers = { snapshot: snapshot(0), findings: { findings: [] } };
    await wake();
    model.awake = false;
    expect(socket.closed).toBe(true);
  });

  it('asks below the base URL, and takes the token to the socket', async () => {
    await wake();
    expect(server.asked).toContain(
      'http://localhost/base/workbench/api/snapshot'
    );
    expect(liveUrl(server.settings)).toBe(
      'ws://localhost/base/workbench/api/live?token=s3%20cret'
    );
  });

  it('shows why the server did not answer, and recovers', async () => {
    await wake();
    expect(await shown()).toContain('The server did not answer');
    server.answers = { snapshot: snapshot(1), findings: { findings: [] } };
    await model.refresh();
    expect(await shown()).not.toContain('did not answer');
    expect(view.node.textContent).toContain('vm1');
  });

  it('says what is missing and why on a VM with neither GPU nor NIC', async () => {
    server.answers = { snapshot: bareSnapshot(), findings: { findings: [] } };
    await wake();
    const text = await shown();
    expect(text).toContain('No GPU: the NVIDIA driver is not installed.');
    expect(text).toContain('No NIC.');
    expect(text).toContain('No RDMA device');
    expect(
      view.node.querySelector('[aria-label="nothing found wrong"]')
    ).not.toBeNull();
  });

  it('shows each GPU and NIC with its figures, RDMA first, virtual ones by name only', async () => {
    server.answers = {
      snapshot: snapshot(8),
      findings: { findings: [finding] }
    };
    await wake();
    say(sample(8));
    await shown();
    const groups = [...view.node.querySelectorAll('[role=group]')];
    expect(groups.map(one => one.getAttribute('aria-label'))).toEqual([
      'CPU', 'Memory', 'GPU 0', 'GPU 1', 'GPU 2', 'GPU 3', 'GPU 4', 'GPU 5', 'GPU 6', 'GPU 7', 'ens192', 'eth0'
    ]); // prettier-ignore
    expect(groups[9].textContent).toMatch(/A100-40C · vGPU.*80%.*31\.2GiB/);
    expect(groups[10].textContent).toMatch(
      /100G.*RDMA tx61\.3Gbit\/s.*RDMA rx61\.1Gbit\/s/
    );
    expect(view.node.textContent).toContain('1 virtual interface: docker0');
  });

  it('shows a dash with its reason for what is not known, within reach of the keyboard', async () => {
    server.answers = { snapshot: snapshot(1), findings: { findings: [] } };
    await wake();
    say(sample(1));
    await shown();
    const reasons = [
      ...view.node.querySelectorAll(
        '[role=group][aria-label="GPU 0"] .jp-gw-Dash'
      )
    ];
    expect(reasons.map(one => one.getAttribute('aria-label'))).toEqual([
      'not reported in a vGPU guest',
      'not reported in a vGPU guest'
    ]);
    expect(reasons.every(one => (one as HTMLElement).tabIndex === 0)).toBe(
      true
    );
  });

  it('shows a finding with its severity as a word, and its fix', async () => {
    server.answers = {
      snapshot: snapshot(1),
      findings: { findings: [finding] }
    };
    await wake();
    const text = await shown();
    expect(text).toContain('Warning GPU 0: GPU 0 and mlx5_0 are PHB apart');
    expect(text).toContain('NCCL_NET_GDR_LEVEL=PHB');
    expect(view.node.querySelector('[aria-label="Warning: 1"]')).not.toBeNull();
  });

  it('tells in one line what matters where the card is closed', async () => {
    server.answers = { snapshot: snapshot(2), findings: { findings: [] } };
    await wake();
    await shown();
    const card = view.node.querySelector<HTMLDetailsElement>('.jp-gw-Card')!;
    card.open = false;
    card.dispatchEvent(new Event('toggle'));
    await shown();
    expect(card.querySelector('.jp-gw-Card-line')!.textContent).toBe(
      'A100-40C ×2 · mlx5_0 100G +1 · 32 CPUs · 256 GiB'
    );
  });

  it('says so when the figures stop being live, and keeps them in place', async () => {
    server.answers = { snapshot: snapshot(1), findings: { findings: [] } };
    await wake();
    say(sample(1));
    expect(await shown()).toContain('This machinelive');
    socket.onclose!({} as CloseEvent);
    expect(await shown()).toContain(
      'not live: the connection was closed; reconnecting'
    );
    expect(view.node.textContent).toContain('37%');
    expect(view.node.querySelector('.jp-gw-mod-stale')).not.toBeNull();
  });

  it('keeps a minute of each series, gaps included', () => {
    model.awake = true;
    for (let i = 0; i < 70; i++) {
      say(sample(1));
    }
    const { machine } = model.server;
    expect(machine.history('gpu/GPU-0')).toHaveLength(60);
    expect(machine.history('nic/eth0/rx')).toEqual(new Array(60).fill(null));
  });
});
