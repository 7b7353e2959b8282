/**
 * The panel alone in a page, with a server and a kernel of the page's own: to
 * look at it, and to measure what it costs. `tests/bench/panel.py` bundles it.
 */
import { ServerConnection } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { KernelLink } from '../../src/cluster/link';
import { ClusterModel } from '../../src/cluster/model';
import { VmList } from '../../src/cluster/vms';
import { WorkbenchPanel } from '../../src/panel/panel';
import { ResourcesClient } from '../../src/resources/client';
import { LiveFeed } from '../../src/resources/livefeed';
import { ResourcesModel } from '../../src/resources/model';
import { ICluster, readKernelMessage } from '../../src/schema/cluster';
import { sampleOf } from './samples';

// Whatever JSON may hold.
type Json = ReturnType<typeof JSON.parse>;

interface IScene {
  snapshot: Json;
  findings: Json[];
  cluster: ICluster | null;
  /** As the kernel tells of them. */
  vms: Json[];
  across: Json[];
  /** The weakest hop of the ring; absent without one. */
  weakest?: Json;
  /** Names of VMs that do not answer. */
  lost: string[];
  /** What fields of the first GPU are. */
  first?: Json;
  preferences?: Json;
}

/** What the panel needs of a cluster, without a kernel. */
class Cluster {
  readonly stateChanged = new Signal<this, void>(this);
  readonly situation = 'linked';
  readonly notebook = 'train.ipynb';
  awake = false;
  link: KernelLink;

  constructor(cluster: ICluster | null) {
    this.link = {
      vms: new VmList(),
      state: {
        loaded: true,
        language: 'python',
        cluster,
        pending: null,
        error: ''
      },
      kernel: { id: 'k1' }
    } as unknown as KernelLink;
  }

  hear(data: Json): void {
    const message = readKernelMessage(data, 'message');
    if (message.type === 'vms') {
      this.link.vms.hearVms(message.vms, message.findings, message.weakest);
    } else if (message.type === 'samples') {
      this.link.vms.hearSamples(message.samples);
    }
  }

  async refresh(): Promise<void> {
    // Nothing changes.
  }

  dispose(): void {
    this.link.vms.dispose();
  }
}

function start(scene: IScene): (seconds: number) => void {
  const answers: Record<string, Json> = {
    snapshot: scene.snapshot,
    findings: { findings: scene.findings }
  };
  const serverSettings = ServerConnection.makeSettings({
    baseUrl: 'http://localhost/',
    fetch: async (request: RequestInfo | URL) => {
      const url = request instanceof Request ? request.url : String(request);
      const name = url.split('?')[0].split('/').pop()!;
      const answer =
        name === 'read'
          ? { ...answers.findings, name: 'topo.xml', snapshot: scene.snapshot }
          : answers[name];
      return new Response(JSON.stringify(answer), { status: 200 });
    }
  });
  let socket: LiveFeed.ISocket | null = null;
  const cluster = new Cluster(scene.cluster);
  const resources = new ResourcesModel({
    client: new ResourcesClient({ serverSettings }),
    feed: new LiveFeed({
      connect: () => {
        socket = { onmessage: null, onclose: null, close: () => undefined };
        return socket;
      }
    }),
    cluster: cluster as unknown as ClusterModel
  });
  resources.preferences = { ...resources.preferences, ...scene.preferences };
  const panel = new WorkbenchPanel({
    cluster: cluster as unknown as ClusterModel,
    resources,
    openFile: () => undefined,
    openSettings: () => undefined,
    trans: nullTranslator.load('')
  });
  panel.node.style.height = '100%';
  Widget.attach(panel, document.body);
  cluster.hear({
    type: 'vms',
    vms: scene.vms,
    findings: scene.across,
    weakest: scene.weakest
  });
  Object.assign(window, { resources });
  return seconds => {
    const first = scene.first ?? {};
    socket?.onmessage?.({
      data: JSON.stringify(sampleOf(scene.snapshot, seconds, first))
    } as MessageEvent);
    const samples: Json = {};
    for (const vm of scene.vms) {
      if (!vm.local) {
        samples[vm.name] = scene.lost.includes(vm.name)
          ? { unknown: 'no answer from this VM for 12 s' }
          : sampleOf(vm.snapshot, seconds + vm.name.length);
      }
    }
    cluster.hear({ type: 'samples', samples });
  };
}

Object.assign(window, { start });
