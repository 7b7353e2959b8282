import { nullTranslator } from '@jupyterlab/translation';
import React, { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

import { IHop } from '../src/schema/cluster';
import { Topology } from '../src/topology/topology';
import { machine, MACHINES, sampleAt } from './topology-fixtures';

const trans = nullTranslator.load('');

describe('the drawing', () => {
  let host: HTMLDivElement;
  let root: Root;

  beforeEach(() => {
    (globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;
    host = document.createElement('div');
    document.body.append(host);
    root = createRoot(host);
  });

  afterEach(() => {
    act(() => root.unmount());
    host.remove();
  });

  const draw = (props: Omit<Topology.IProps, 'trans' | 'width'>): void =>
    act(() => root.render(<Topology {...props} trans={trans} width={300} />));

  const all = (selector: string): HTMLElement[] => [
    ...host.querySelectorAll<HTMLElement>(selector)
  ];
  const button = (name: string): HTMLElement =>
    all('button').find(
      one => one.querySelector('.jp-gw-Node-name')!.textContent === name
    )!;
  const lit = (): string[] =>
    all('button.jp-gw-mod-lit').map(
      one => one.querySelector('.jp-gw-Node-name')!.textContent!
    );
  const press = (key: string): void =>
    act(() => {
      document.activeElement!.dispatchEvent(
        new KeyboardEvent('keydown', { key, bubbles: true })
      );
    });
  const focus = (name: string): void => act(() => button(name).focus());
  const focused = (): string =>
    document.activeElement!.querySelector('.jp-gw-Node-name')!.textContent!;

  it.each(MACHINES)('of %s has a button for each device, and a name', name => {
    const snapshot = machine(name);
    draw({ snapshot });
    const group = host.querySelector('[role=group]')!;
    expect(group.getAttribute('aria-label')).toMatch(/^Topology/);
    const devices = Math.max(1, snapshot.gpus.length) + snapshot.nics.length;
    expect(all('button')).toHaveLength(devices);
    expect(all('button').every(one => one.getAttribute('aria-label'))).toBe(
      true
    );
    expect(all('button').filter(one => one.tabIndex === 0)).toHaveLength(1);
  });

  const hop = (kind: string, devices: string[], end: string): IHop => ({
    name: 'a link of vm2',
    kind,
    ranks: [1, 2],
    vm: 'vm2',
    devices,
    gb_per_s: 12.5,
    end
  });
  const marked = (): (string | null)[] =>
    all('.jp-gw-Topology-edges .jp-gw-Edge-weakest').map(one =>
      one.querySelector('path')!.getAttribute('d')
    );
  const edgeOf = (kind: string, place: number): string | null =>
    all(`.jp-gw-Topology-edges .jp-gw-Edge.jp-gw-mod-${kind} path`)[
      place
    ].getAttribute('d');

  it('marks the weakest hop of the ring, and names it with its rate and ranks', () => {
    const snapshot = machine('hgx-h100-vm');
    const nic = snapshot.nics[0].name;
    const words =
      'Weakest hop of the ring: a link of vm2, 12.5 GB/s, from rank 1 to rank 2';
    draw({ snapshot, weakest: hop('network', [], nic) });
    expect(marked()).toEqual([edgeOf('network', 0)]);
    expect(host.querySelector('.jp-gw-Topology-weakest')!.textContent).toBe(words); // prettier-ignore
    expect(host.querySelector('.jp-gw-Edge-weakest title')!.textContent).toBe(words); // prettier-ignore
    expect(all('.jp-gw-Topology-weakest svg')).toHaveLength(1);
  });

  it('marks PCIe of one device, and NVLink of two', () => {
    const snapshot = machine('hgx-h100-vm');
    const gpus = snapshot.gpus.map(one => String(one.pci_address));
    draw({ snapshot, weakest: hop('PCIe', gpus.slice(0, 2), gpus[1]) });
    expect(marked()).toHaveLength(1);
    draw({ snapshot, weakest: hop('NVLink', [gpus[0], gpus[3]], '') });
    expect(marked()).toEqual([edgeOf('nvlink', 0), edgeOf('nvlink', 3)]);
    const pairs = machine('bridged-a100');
    const [a, b] = pairs.gpus.map(one => String(one.pci_address));
    draw({ snapshot: pairs, weakest: hop('NVLink', [a, b], '') });
    expect(marked()).toEqual([edgeOf('nvlink', 0)]);
  });

  it('marks nothing where the hop is unknown or not drawn, and says why', () => {
    const snapshot = machine('hgx-h100-vm');
    draw({ snapshot, weakest: { unknown: 'the driver reports no speed' } });
    expect(marked()).toEqual([]);
    expect(host.textContent).toContain(
      'Weakest hop of the ring unknown: the driver reports no speed'
    );
    draw({ snapshot, weakest: hop('network', [], 'gone0') });
    expect(marked()).toEqual([]);
    expect(host.textContent).toContain('to rank 2 (not in the drawing)');
    draw({ snapshot, weakest: null });
    expect(host.querySelector('.jp-gw-Topology-weakest')).toBeNull();
  });

  it('says that there is no GPU, and why', () => {
    draw({ snapshot: machine('nothing') });
    expect(host.textContent).toContain('No GPU: the NVIDIA driver is not loaded.'); // prettier-ignore
    expect(button('no GPU').getAttribute('aria-label')).toContain(
      'the NVIDIA driver is not loaded'
    );
    expect(host.querySelector('table')).toBeNull();
  });

  it('says that a VM hides its tree, and which source the tree is from', () => {
    draw({ snapshot: machine('a100-4c') });
    expect(host.textContent).toContain('This VM hides its PCIe tree');
    draw({ snapshot: machine('hgx-h100-vm') });
    expect(host.textContent).not.toContain('This VM hides its PCIe tree');
    expect(host.textContent).toContain(
      'PCIe from the topology file of NCCL: /topology.xml'
    );
  });

  it('tells of a device its form, place, NVLinks, verdict, ranks and load', () => {
    const snapshot = machine('hgx-h100-vm');
    draw({
      snapshot,
      sample: sampleAt(snapshot, 225e9, 0),
      ranks: [{ rank: 3, gpu: '1 (H100)', nic: 'eth0, mlx5_1' }]
    });
    const label = button('GPU 1').getAttribute('aria-label')!;
    for (const part of [
      'GPU 1, rank 3',
      'passthrough',
      'NUMA node 0',
      'NVLink to NVSwitch · 18 links',
      'PIX, GPUDirect RDMA',
      'NVLink about 50 %',
      'PCIe load unknown'
    ]) {
      expect(label).toContain(part);
    }
    expect(button('mlx5_0').getAttribute('aria-label')).toContain(
      'network idle'
    );
  });

  it('draws idle, busy and not known as three things', () => {
    const snapshot = machine('hgx-h100-vm');
    const parts = (nvlink: number): number[] => {
      draw({ snapshot, sample: sampleAt(snapshot, nvlink, 0) });
      return ['line', 'pipe', 'load'].map(
        part =>
          all(`.jp-gw-Topology-edges .jp-gw-mod-nvlink .jp-gw-Edge-${part}`)
            .length
      );
    };
    expect(parts(0)).toEqual([0, 8, 0]);
    expect(parts(1e9)).toEqual([0, 8, 8]);
    draw({ snapshot });
    expect(all('.jp-gw-Edge-pipe')).toHaveLength(0);
    expect(host.textContent).not.toContain('thin: not measured');
  });

  it('lights the way of a rank, of its GPU and of its NIC', () => {
    const ranks = [0, 1].map(rank => ({
      rank,
      gpu: `${rank} (H100)`,
      nic: `eth0, mlx5_${1 - rank}`
    }));
    draw({ snapshot: machine('hgx-h100-vm'), ranks });
    focus('GPU 0');
    expect(lit()).toEqual(['GPU 0', 'mlx5_1']);
    focus('mlx5_0');
    expect(lit()).toEqual(['GPU 1', 'mlx5_0']);
    act(() => (document.activeElement as HTMLElement).blur());
    expect(lit()).toEqual([]);
    act(() => {
      all('.jp-gw-Rank')[1].dispatchEvent(
        new MouseEvent('mouseover', { bubbles: true })
      );
    });
    expect(lit()).toContain('mlx5_0');
  });

  it('lights the nearest NICs, over the switch that they share', () => {
    draw({ snapshot: machine('hgx-h100-vm') });
    focus('GPU 6');
    expect(lit()).toEqual(['GPU 6', 'mlx5_6', 'mlx5_7']);
    expect(all('.jp-gw-mod-switch.jp-gw-mod-lit')).toHaveLength(1);
    expect(all('.jp-gw-mod-node.jp-gw-mod-lit')).toHaveLength(0);
    expect(all('.jp-gw-mod-fabric.jp-gw-mod-lit')).toHaveLength(1);
  });

  it('lights the way across the CPUs where a rank goes that way', () => {
    const ranks = [{ rank: 0, gpu: '0 (H100)', nic: 'eth0, mlx5_7' }];
    draw({ snapshot: machine('hgx-h100-vm'), ranks });
    focus('GPU 0');
    expect(button('GPU 0').getAttribute('aria-label')).toContain(
      'rank 0 uses mlx5_7: SYS, no GPUDirect RDMA'
    );
    expect(all('.jp-gw-mod-node.jp-gw-mod-lit')).toHaveLength(2);
    expect(
      host.querySelectorAll('.jp-gw-Edge-crossing.jp-gw-mod-lit')
    ).toHaveLength(1);
  });

  it('is walked with the arrow keys, one device in the tab order', () => {
    draw({ snapshot: machine('hgx-h100-vm') });
    focus('GPU 0');
    press('ArrowDown');
    expect(focused()).toBe('GPU 1');
    press('ArrowRight');
    expect(focused()).toBe('mlx5_0');
    press('ArrowLeft');
    expect(focused()).toBe('GPU 0');
    press('End');
    expect(focused()).toBe('eth0');
    press('ArrowDown');
    expect(focused()).toBe('eth0');
    press('Home');
    expect(focused()).toBe('GPU 0');
    expect(all('button').filter(one => one.tabIndex === 0)).toEqual([
      button('GPU 0')
    ]);
  });

  it('selects a device and lets go of it', () => {
    const chosen: unknown[] = [];
    const onSelect = (one: unknown): unknown => chosen.push(one);
    draw({ snapshot: machine('bridged-a100'), onSelect });
    focus('mlx5_1');
    act(() => button('mlx5_1').click()); // what Enter does to a button
    expect(button('mlx5_1').getAttribute('aria-pressed')).toBe('true');
    press('Escape');
    expect(chosen).toEqual([{ kind: 'nic', position: 1 }, null]);
    expect(document.activeElement).toBe(host.querySelector('[role=group]'));
    expect(lit()).toEqual([]);
  });

  it('has a table of distances and verdicts', () => {
    draw({ snapshot: machine('bridged-a100') });
    const rows = [...host.querySelectorAll('tbody tr')].map(row =>
      [...row.children].map(cell => cell.textContent)
    );
    expect(rows[0]).toEqual([
      'GPU 0',
      'NODE, no GPUDirect RDMA',
      'SYS, no GPUDirect RDMA',
      'itself',
      'NODE',
      'SYS',
      'SYS'
    ]);
  });

  it('shows ranks that train on CPUs', () => {
    draw({
      snapshot: machine('nothing'),
      ranks: [{ rank: 4, gpu: 'CPU', nic: 'eth0' }]
    });
    expect(host.querySelector('.jp-gw-Topology-ranks')!.textContent).toBe(
      'On CPUs: r4'
    );
  });

  it('keeps what does not change when a sample comes', () => {
    const snapshot = machine('hgx-h100-vm');
    draw({ snapshot, sample: sampleAt(snapshot, 1e9, 1e9) });
    const changed: string[] = [];
    const observer = new MutationObserver(found =>
      changed.push(...found.map(one => one.attributeName ?? one.type))
    );
    observer.observe(host, {
      attributes: true,
      childList: true,
      characterData: true,
      subtree: true
    });
    draw({ snapshot, sample: sampleAt(snapshot, 1.01e9, 1.01e9) });
    const taken = observer.takeRecords();
    expect([...changed, ...taken]).toEqual([]);
    draw({ snapshot, sample: sampleAt(snapshot, 400e9, 1e9) });
    const names = observer.takeRecords().map(one => one.attributeName);
    expect(new Set(names)).toEqual(new Set(['stroke-width', 'aria-label']));
    observer.disconnect();
  });
});
