import { nullTranslator } from '@jupyterlab/translation';

import { readSnapshot } from '../src/schema/snapshot';
import { IBranch, IDevice, IGraph, isBranch } from '../src/topology/graph';
import { loadOf } from '../src/topology/loads';
import { linksUp } from '../src/topology/nvlink';
import { placeRanks } from '../src/topology/ranks';
import { readGraph } from '../src/topology/read';
import { Verdicts } from '../src/topology/verdict';
import { whatItIs } from '../src/topology/words';
import { Json } from './fixtures';
import { machine, MACHINES, plain, sampleAt } from './topology-fixtures';

/** `node[switch[GPU 0 mlx5_0]]`, so that a whole tree is compared at once. */
function shape(one: IBranch | IDevice): string {
  if (!isBranch(one)) {
    return one.name || one.kind;
  }
  return `${one.kind}[${one.children.map(shape).join(' ')}]`;
}

const shapes = (graph: IGraph): string[] => graph.roots.map(shape);

const spoilt = (name: string, spoil: (data: Json) => void): IGraph => {
  const data = plain(name);
  spoil(data);
  return readGraph(readSnapshot(data, 'snapshot'));
};

const device = (graph: IGraph, name: string): IDevice =>
  graph.devices.find(one => one.name === name)!;

describe('the graph of a snapshot', () => {
  it('has no GPU but says so, where there is none', () => {
    const graph = readGraph(machine('nothing'));
    expect(shapes(graph)).toEqual(['node[no-gpu eth0]']);
    expect(graph.hidden).toBe(false);
  });

  it('has devices right below the CPUs where a VM hides its tree, and knows that it does', () => {
    const graph = readGraph(machine('a100-4c'));
    expect(shapes(graph)).toEqual(['node[GPU 0 mlx5_0]']);
    expect([graph.source, graph.hidden]).toEqual(['sysfs', true]);
    expect([graph.pairs, graph.fabric]).toEqual([[], null]);
  });

  it('joins two vGPUs by NVLink where the driver says that they reach each other so', () => {
    const { pairs } = readGraph(machine('a100-40c-pair'));
    expect(pairs.map(one => [one.a, one.b])).toEqual([['gpu-0', 'gpu-1']]);
    expect(pairs[0].links).toHaveProperty('unknown');
  });

  it('joins bridged cards in pairs, by the number of their links', () => {
    const graph = readGraph(machine('bridged-a100'));
    expect(shapes(graph)).toEqual([
      'node[GPU 0 GPU 1 mlx5_0]',
      'node[GPU 2 GPU 3 mlx5_1]'
    ]);
    expect(graph.pairs.map(one => [one.a, one.b, one.links])).toEqual([
      ['gpu-0', 'gpu-1', 12],
      ['gpu-2', 'gpu-3', 12]
    ]);
    expect(graph.hidden).toBe(false);
  });

  it('goes by the topology file, as NCCL does; what the file has not is elsewhere', () => {
    const graph = readGraph(machine('hgx-h100-vm'));
    expect(shapes(graph)).toEqual([
      'node[switch[GPU 0 GPU 1 mlx5_0 mlx5_1] switch[GPU 2 GPU 3 mlx5_2 mlx5_3]]',
      'node[switch[GPU 4 GPU 5 mlx5_4 mlx5_5] switch[GPU 6 GPU 7 mlx5_6 mlx5_7]]',
      'apart[eth0]'
    ]);
    expect([graph.source, graph.origin]).toEqual(['file', '/topology.xml']);
    expect(graph.fabric?.members.map(one => one.links)).toEqual(
      Array(8).fill(18)
    );
  });

  it('goes by sysfs without a file: two bridges are one switch there', () => {
    const graph = readGraph(machine('hgx-h100-host'));
    expect(shapes(graph)[0]).toBe(
      'node[switch[GPU 0 mlx5_0] switch[GPU 1 mlx5_1] switch[GPU 2 mlx5_2] switch[GPU 3 mlx5_3] mlx5_8 eno1]'
    );
  });

  it('keeps the order of NUMA nodes where GPUs are numbered otherwise', () => {
    expect(shapes(readGraph(machine('hgx-a100-ndv4')))).toEqual([
      'node[switch[GPU 2 GPU 3 mlx5_2 mlx5_3]]',
      'node[switch[GPU 0 GPU 1 mlx5_0 mlx5_1]]',
      'node[switch[GPU 6 GPU 7 mlx5_6 mlx5_7]]',
      'node[switch[GPU 4 GPU 5 mlx5_4 mlx5_5]]'
    ]);
  });

  it('has MIG devices below the GPU that they are cut from', () => {
    expect(shapes(readGraph(machine('mig')))[0]).toBe(
      'node[switch[board[MIG 0:0 MIG 0:1] board[MIG 1:0 MIG 1:1] mlx5_0] ' +
        'switch[board[MIG 2:0 MIG 2:1] board[MIG 3:0 MIG 3:1]]]'
    );
  });

  it('has switches in a row, and NICs without a name', () => {
    expect(shapes(readGraph(machine('sixteen-from-a-file')))[1]).toBe(
      'node[switch[switch[GPU 8 GPU 9 NIC 4] switch[GPU 10 GPU 11 NIC 5]] ' +
        'switch[switch[GPU 12 GPU 13 NIC 6] switch[GPU 14 GPU 15 NIC 7]]]'
    );
  });

  it('shows a GPU that the kernel sees and the driver does not', () => {
    const graph = spoilt('a100-4c', data => {
      data.gpus = [];
    });
    expect(shapes(graph)).toEqual(['node[unseen-gpu mlx5_0]']);
  });

  it('shows devices of which a topology file gives the place alone', () => {
    const why = 'the topology file gives no class';
    const graph = spoilt('sixteen-from-a-file', data => {
      data.gpus = [];
      data.nics = [];
      for (const one of data.pcie.trees[0].devices) {
        if (one.kind === 'gpu' || one.kind === 'nic') {
          one.kind = { unknown: why };
        }
      }
    });
    const { devices } = graph;
    expect(new Set(devices.map(one => one.kind))).toEqual(new Set(['unclear']));
    expect(devices).toHaveLength(24);
    expect(devices.map(one => one.name)).toEqual(
      devices.map(one => one.address)
    );
    expect(new Set(devices.map(one => one.unclear))).toEqual(new Set([why]));
    expect(devices.every(one => typeof one.numa === 'number')).toBe(true);
    expect(
      devices.map(one => whatItIs(one, '', nullTranslator.load('x')))
    ).toEqual(devices.map(() => `GPU, NIC or other device: ${why}`));
  });

  it('draws what there is where PCIe could not be read', () => {
    const graph = spoilt('a100-4c', data => {
      data.pcie = { unknown: 'sysfs did not answer within 10 s' };
    });
    expect(shapes(graph)).toEqual(['node[GPU 0 mlx5_0]']);
    expect([graph.source, graph.origin]).toEqual([
      'none',
      'sysfs did not answer within 10 s'
    ]);
  });

  it('puts a lost GPU elsewhere', () => {
    const graph = spoilt('bridged-a100', data => {
      data.gpus[3].pci_address = { unknown: 'the GPU is lost' };
    });
    expect(shapes(graph)[2]).toBe('apart[GPU 3]');
    expect(graph.pairs).toHaveLength(1);
  });

  it('tells what the fabric lacks', () => {
    const graph = spoilt('hgx-h100-vm', data => {
      data.gpus[2].nvlink.fabric.state = 'in progress';
    });
    expect(graph.fabric?.trouble).toBe('in progress');
  });

  it('counts the links that are up alone', () => {
    const graph = spoilt('hgx-h100-vm', data => {
      data.gpus[0].nvlink.links[0].state = 'down';
    });
    expect(graph.fabric?.members[0].links).toBe(17);
  });

  it('does not count links of which one is not known', () => {
    const graph = spoilt('hgx-h100-vm', data => {
      data.gpus[0].nvlink.links[0].state = { unknown: 'the driver hangs' };
    });
    expect(linksUp(device(graph, 'GPU 0'))).toEqual({
      unknown: 'the driver hangs'
    });
    expect(linksUp(device(graph, 'GPU 1'))).toEqual({ up: 18, all: 18 });
  });

  it.each(MACHINES)('has each GPU and NIC of %s once', name => {
    const snapshot = machine(name);
    const graph = readGraph(snapshot);
    const ids = graph.devices.map(one => one.id);
    expect(new Set(ids).size).toBe(ids.length);
    const count = (kind: string): number =>
      graph.devices.filter(one => one.kind === kind).length;
    expect(count('gpu')).toBe(snapshot.gpus.length);
    expect(count('nic')).toBe(snapshot.nics.length);
  });

  it('survives a file with a ring of bridges', () => {
    const graph = spoilt('hgx-h100-vm', data => {
      const { devices } = data.pcie.trees[0];
      devices[0].parent = devices[0].address;
    });
    expect(graph.devices).toHaveLength(17);
  });
});

describe('the verdicts', () => {
  it('name every NIC that is equally near, with the distance and why', () => {
    const snapshot = machine('hgx-h100-vm');
    const graph = readGraph(snapshot);
    const verdicts = new Verdicts(snapshot, graph);
    const near = verdicts.nearest(device(graph, 'GPU 5'));
    expect(near.map(one => [one.nic.name, one.distance, one.possible])).toEqual(
      [
        ['mlx5_4', 'PIX', true],
        ['mlx5_5', 'PIX', true]
      ]
    );
    expect(near[0].why).toContain('PIX is within PXB');
  });

  it('tell the nearest where GPUDirect is not possible, too', () => {
    const snapshot = machine('a100-4c');
    const graph = readGraph(snapshot);
    const [one] = new Verdicts(snapshot, graph).nearest(graph.devices[0]);
    expect([one.nic.name, one.distance, one.possible]).toEqual([
      'mlx5_0',
      'PHB',
      false
    ]);
  });

  it('take the source that NCCL goes by', () => {
    const snapshot = machine('hgx-h100-vm');
    const graph = readGraph(snapshot);
    const verdicts = new Verdicts(snapshot, graph);
    const [a, b] = ['GPU 0', 'GPU 1'].map(name => device(graph, name));
    expect(verdicts.distance(a, b)).toBe('PIX'); // sysfs says PHB, NVML says SYS
    expect(verdicts.distance(a, device(graph, 'eth0'))).toHaveProperty(
      'unknown'
    );
  });
});

describe('ranks', () => {
  it('are found by the GPU and the RDMA device that the kernel names', () => {
    const graph = readGraph(machine('hgx-h100-vm'));
    const [one] = placeRanks(
      [{ rank: 11, gpu: '3 (NVIDIA H100 80GB HBM3)', nic: 'eth0, mlx5_3' }],
      graph
    );
    expect([one.gpu?.name, one.nic?.name]).toEqual(['GPU 3', 'mlx5_3']);
  });

  it('count MIG devices as the kernel does', () => {
    const [one] = placeRanks(
      [{ rank: 0, gpu: '5 (x)', nic: 'ens192np0' }],
      readGraph(machine('mig'))
    );
    expect([one.gpu?.name, one.nic?.name]).toEqual(['MIG 2:1', 'mlx5_0']);
  });

  it('may train on CPUs, or not be up yet', () => {
    const coming = { unknown: 'this rank has not started yet' };
    const found = placeRanks(
      [
        { rank: 0, gpu: 'CPU', nic: 'eth0' },
        { rank: 1, gpu: coming, nic: coming }
      ],
      readGraph(machine('nothing'))
    );
    expect(found.map(one => one.gpu)).toEqual([null, null]);
    expect(found.map(one => one.nic?.name)).toEqual(['eth0', undefined]);
  });
});

describe('loads', () => {
  const snapshot = machine('hgx-h100-vm');
  const graph = readGraph(snapshot);

  it('are shares of the nominal rate of one direction', () => {
    const sample = sampleAt(snapshot, 225e9, 25e9);
    const gpu = device(graph, 'GPU 2');
    expect(loadOf(gpu, 'nvlink', sample, graph).share).toBeCloseTo(0.5);
    const nic = device(graph, 'mlx5_2');
    expect(loadOf(nic, 'network', sample, graph).share).toBeCloseTo(0.5);
  });

  it('are not known without a counter, without a nominal rate, or without a sample', () => {
    const sample = sampleAt(snapshot, 0, 1);
    const gpu = device(graph, 'GPU 2');
    expect(loadOf(gpu, 'pcie', sample, graph).share).toEqual({
      unknown: 'not reported in a vGPU guest'
    });
    const plainNic = loadOf(device(graph, 'eth0'), 'network', sample, graph);
    expect(plainNic.bytes_per_s).toBe(1);
    expect(plainNic.share).toHaveProperty('unknown');
    expect(loadOf(gpu, 'nvlink', null, graph).share).toHaveProperty('unknown');
    expect(loadOf(gpu, 'nvlink', sample, graph).share).toBe(0);
  });

  it('are told apart by UUID where MIG devices have one index', () => {
    const cut = machine('mig');
    const parts = readGraph(cut);
    const sample = {
      gpus: sampleAt(cut, 0, 0).gpus.map((one, at) => ({
        ...one,
        pcie_tx_bytes_per_s: at,
        pcie_rx_bytes_per_s: at
      })),
      nics: []
    };
    const shuffled = { ...sample, gpus: [...sample.gpus].reverse() };
    const loads = parts.devices
      .filter(one => one.kind === 'gpu')
      .map(one => loadOf(one, 'pcie', shuffled, parts).bytes_per_s);
    expect(loads).toEqual(Array.from({ length: 16 }, (_, at) => at));
  });

  it('of a GPU that the sample has not are not known', () => {
    const sample = { ...sampleAt(snapshot, 1, 1), gpus: [] };
    const load = loadOf(device(graph, 'GPU 2'), 'nvlink', sample, graph);
    expect(load.bytes_per_s).toHaveProperty('unknown');
  });
});

describe('reading plain JSON', () => {
  it('names the field that is wrong', () => {
    const data = plain('a100-4c');
    data.pcie.trees[0].devices[0].parent = 7;
    expect(readSnapshot(data, 'snapshot').pcie).toEqual({
      unknown:
        'snapshot.pcie.trees[0].devices[0].parent: expected a text, found 7'
    });
  });

  it('takes a server that sends no PCIe yet', () => {
    const data = plain('a100-4c');
    delete data.pcie;
    delete data.gpu_pairs;
    delete data.gpus[0].nvlink;
    expect(readGraph(readSnapshot(data, 'snapshot')).source).toBe('none');
  });
});
