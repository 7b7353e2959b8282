/** Highlighting: the path from a GPU to its NIC, and its NVLinks. */
import { IDevice, IGraph } from './graph';
import { ILayout } from './layout';
import { IRankPlace } from './ranks';
import { Verdicts } from './verdict';

/** The device or rank under the pointer. */
export type Pointed =
  | { readonly kind: 'device'; readonly id: string }
  | { readonly kind: 'rank'; readonly rank: number };

/** Ids of devices, branches, edges and crossings, and `fabric`. */
export type Lit = ReadonlySet<string>;

/** The class of an element that is highlighted, or dimmed because another is. */
export function highlight(lit: Lit | null, id: string): string {
  return lit === null ? '' : lit.has(id) ? 'jp-gw-mod-lit' : 'jp-gw-mod-dim';
}

export function litBy(
  pointed: Pointed,
  graph: IGraph,
  layout: ILayout,
  ranks: readonly IRankPlace[],
  verdicts: Verdicts
): Lit {
  const lit = new Set<string>();
  const ways =
    pointed.kind === 'rank'
      ? Private.ofRank(pointed.rank, ranks, verdicts)
      : Private.ofDevice(pointed.id, graph, ranks, verdicts);
  for (const [gpu, nic] of ways) {
    Private.way(gpu, nic, layout, graph, lit);
  }
  if (pointed.kind === 'device') {
    lit.add(pointed.id);
    Private.nvlinks(pointed.id, graph, lit);
  }
  return lit;
}

/** The other ends of a device's paths: its NICs, or the GPUs that it serves. */
export function partners(
  device: IDevice,
  graph: IGraph,
  ranks: readonly IRankPlace[],
  verdicts: Verdicts
): string[] {
  return Private.ofDevice(device.id, graph, ranks, verdicts)
    .map(([gpu, nic]) => (device.kind === 'gpu' ? nic?.id : gpu?.id))
    .filter((id): id is string => id !== undefined && id !== device.id);
}

namespace Private {
  type Way = readonly [IDevice | null, IDevice | null];

  export function ofRank(
    rank: number,
    ranks: readonly IRankPlace[],
    verdicts: Verdicts
  ): Way[] {
    const place = ranks.find(one => one.rank === rank);
    if (!place) {
      return [];
    }
    return place.gpu && !place.nic
      ? nearest(place.gpu, verdicts)
      : [[place.gpu, place.nic]];
  }

  /** The paths of its ranks; without ranks, to the nearest NICs. */
  export function ofDevice(
    id: string,
    graph: IGraph,
    ranks: readonly IRankPlace[],
    verdicts: Verdicts
  ): Way[] {
    const used = ranks.filter(one => one.gpu?.id === id || one.nic?.id === id);
    if (used.length > 0) {
      return used.flatMap(one => ofRank(one.rank, ranks, verdicts));
    }
    const device = graph.devices.find(one => one.id === id);
    if (device?.kind === 'gpu') {
      return nearest(device, verdicts);
    }
    return graph.devices
      .filter(one => one.kind === 'gpu')
      .flatMap(gpu => nearest(gpu, verdicts))
      .filter(([, nic]) => nic?.id === id);
  }

  function nearest(gpu: IDevice, verdicts: Verdicts): Way[] {
    const found = verdicts.nearest(gpu);
    return found.length > 0
      ? found.map(one => [gpu, one.nic] as const)
      : [[gpu, null]];
  }

  /** Up from both to the common node above; through the CPUs if there is none. */
  export function way(
    gpu: IDevice | null,
    nic: IDevice | null,
    layout: ILayout,
    graph: IGraph,
    lit: Set<string>
  ): void {
    const [a, b] = [gpu, nic].map(one => (one ? above(one.id, layout) : []));
    const shared = gpu && nic ? a.find(id => b.includes(id)) : undefined;
    for (const chain of [a, b]) {
      const end = shared ? chain.indexOf(shared) : chain.length - 1;
      chain.slice(0, end + 1).forEach((id, index) => {
        lit.add(id);
        if (index < end) {
          lit.add(`up-${id}`);
        }
      });
    }
    if (nic) {
      lit.add(`out-${nic.id}`);
    }
    if (gpu && nic && !shared) {
      const at = [a, b].map(chain =>
        graph.roots.findIndex(root => root.id === chain[chain.length - 1])
      );
      for (let i = Math.min(...at); i < Math.max(...at); i++) {
        lit.add(`cross-${i}`);
      }
    }
  }

  export function nvlinks(id: string, graph: IGraph, lit: Set<string>): void {
    if (graph.fabric?.members.some(one => one.id === id)) {
      lit.add('fabric').add(`fabric-${id}`);
    }
    for (const pair of graph.pairs) {
      if (pair.a === id || pair.b === id) {
        lit.add(pair.id).add(pair.a).add(pair.b);
      }
    }
  }

  /** The device, then the nodes above it, up to the CPUs. */
  function above(id: string, layout: ILayout): string[] {
    const found = [id];
    for (let at = layout.parents.get(id); at; at = layout.parents.get(at)) {
      found.push(at);
    }
    return found;
  }
}
