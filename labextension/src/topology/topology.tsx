import { TranslationBundle } from '@jupyterlab/translation';
import React, { useCallback, useMemo, useRef, useState } from 'react';

import { isUnknown, orElse } from '../common/known';
import { About, linesAbout } from './about';
import { Badge, Branches, Device } from './boxes';
import { Edges, stepOf } from './edges';
import { IDevice, IGraph } from './graph';
import {
  ITopologyRank,
  ITopologySample,
  ITopologySnapshot
} from './interfaces';
import { ILayout, layOut } from './layout';
import { EdgeKind, ILoad, kindsOf, loadOf } from './loads';
import { litBy, partners, Pointed } from './paths';
import { IRankPlace, placeRanks } from './ranks';
import { readGraph } from './read';
import { stepTo } from './steps';
import { Table } from './table';
import { useWidth } from './usewidth';
import { Verdicts } from './verdict';
import { nameOf, roughLoad, sourceWords } from './words';

const NO_RANKS: readonly ITopologyRank[] = [];

/**
 * One VM drawn: CPUs, switches, GPUs, NICs and what joins them.
 *
 * What does not change is worked out once for a snapshot (by its identity) and a width;
 * a new sample changes the loads alone.
 */
export function Topology(props: Topology.IProps): JSX.Element {
  const { snapshot, trans, onSelect } = props;
  const sample = props.sample ?? null;
  const root = useRef<HTMLDivElement>(null);
  const width = useWidth(root, props.width);
  const graph = useMemo(() => readGraph(snapshot), [snapshot]);
  const verdicts = useMemo(
    () => new Verdicts(snapshot, graph),
    [snapshot, graph]
  );
  const layout = useMemo(() => layOut(graph, width), [graph, width]);
  const given = props.ranks ?? NO_RANKS;
  const ranks = useMemo(() => placeRanks(given, graph), [given, graph]);

  const [hovered, setHovered] = useState<string | null>(null);
  const [hoveredRank, setHoveredRank] = useState<number | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const [pinned, setPinned] = useState<string | null>(null);
  const [active, setActive] = useState('');
  const shown = hovered ?? focused ?? pinned;
  const first = graph.devices[0]?.id;
  const inTabOrder = graph.devices.some(one => one.id === active)
    ? active
    : first;

  const lit = useMemo(() => {
    const pointed: Pointed | null =
      hoveredRank !== null
        ? { kind: 'rank', rank: hoveredRank }
        : shown !== null
          ? { kind: 'device', id: shown }
          : null;
    return pointed && litBy(pointed, graph, layout, ranks, verdicts);
  }, [hoveredRank, shown, graph, layout, ranks, verdicts]);

  const select = useCallback(
    (id: string | null) => {
      setPinned(id);
      const device = graph.devices.find(one => one.id === id);
      onSelect?.(device ? Private.selected(device) : null);
    },
    [graph, onSelect]
  );
  const toggle = useCallback(
    (id: string) => select(pinned === id ? null : id),
    [select, pinned]
  );
  const onFocus = useCallback((id: string | null) => {
    setFocused(id);
    if (id !== null) {
      setActive(id);
    }
  }, []);

  const onKeyDown = (event: React.KeyboardEvent): void => {
    const at = graph.devices.find(one => one.id === focused);
    if (event.key === 'Escape' && (at || pinned !== null)) {
      event.stopPropagation();
      select(null);
      root.current?.focus();
      return;
    }
    const to =
      at &&
      stepTo(event.key, at.id, layout.rows, graph, () =>
        partners(at, graph, ranks, verdicts)
      );
    if (to) {
      event.preventDefault();
      root.current
        ?.querySelector<HTMLElement>(`[data-id="${to}"]`)
        ?.focus({ preventScroll: false });
    }
  };

  const why = snapshot.probes.gpus.reason;
  const words = useMemo(
    () => Private.labels(graph, verdicts, ranks, why, trans),
    [graph, verdicts, ranks, why, trans]
  );
  const loads = Private.loads(graph, sample);
  const steps = new Map(
    layout.edges.map(edge => [
      edge.id,
      edge.device === null
        ? null
        : stepOf(loads.get(edge.device)?.[edge.kind]?.share ?? { unknown: '' })
    ])
  );
  const shownLoads = shown === null ? undefined : loads.get(shown);
  const homeless = ranks.filter(one => one.gpu === null);
  return (
    <div
      className={`jp-gw-Topology ${Private.shape(layout, width)}`}
      ref={root}
      role="group"
      tabIndex={-1}
      aria-label={Private.name(snapshot, graph, trans)}
      onKeyDown={onKeyDown}
    >
      <div
        className="jp-gw-Topology-drawing"
        style={{ width: layout.width, height: layout.height }}
      >
        <Edges layout={layout} steps={steps} lit={lit} />
        <Branches graph={graph} layout={layout} lit={lit} trans={trans} />
        {graph.devices.map(device => (
          <Device
            key={device.id}
            device={device}
            box={layout.devices.get(device.id)!}
            label={Private.label(
              words.get(device.id)!,
              loads.get(device.id),
              sample !== null,
              trans
            )}
            why={why}
            ranks={Private.ranksOf(device, ranks)}
            mod={
              lit === null
                ? ''
                : lit.has(device.id)
                  ? 'jp-gw-mod-lit'
                  : 'jp-gw-mod-dim'
            }
            pressed={pinned === device.id}
            inTabOrder={device.id === inTabOrder}
            onPoint={setHovered}
            onPointRank={setHoveredRank}
            onFocus={onFocus}
            onSelect={toggle}
            trans={trans}
          />
        ))}
      </div>
      {homeless.length > 0 && (
        <p className="jp-gw-Topology-ranks">
          {trans.__('On CPUs:')}{' '}
          {homeless.map(one => (
            <Badge key={one.rank} rank={one.rank} onPoint={setHoveredRank} />
          ))}
        </p>
      )}
      <About
        graph={graph}
        layout={layout}
        verdicts={verdicts}
        why={why}
        shown={shown}
        loads={Private.listed(shownLoads)}
        live={[...steps.values()].some(step => step !== null)}
        trans={trans}
      />
      <Table graph={graph} verdicts={verdicts} trans={trans} />
    </div>
  );
}

export namespace Topology {
  export interface IProps {
    snapshot: ITopologySnapshot;

    /** The newest; without one no load is drawn. */
    sample?: ITopologySample | null;

    /** Those on this VM. Give the same list again while nothing changes. */
    ranks?: readonly ITopologyRank[];

    /** A device was chosen, or (null) none is any more. */
    onSelect?: (device: ISelected | null) => void;

    /** Of the drawing, in CSS pixels; by default as wide as there is room. */
    width?: number;

    trans: TranslationBundle;
  }

  /** A device by its place in the snapshot's `gpus` or `nics`. */
  export interface ISelected {
    readonly kind: 'gpu' | 'nic';
    readonly position: number;
  }
}

namespace Private {
  export type Loads = Partial<Record<EdgeKind, ILoad>>;

  /** Where rows leave room, what is said of a device stands beside them. */
  export function shape(layout: ILayout, width: number): string {
    const beside = layout.rows && width - layout.width >= LEAST_BESIDE;
    return `${layout.rows ? '' : 'jp-gw-mod-columns'} ${beside ? 'jp-gw-mod-beside' : ''}`;
  }

  const LEAST_BESIDE = 240;

  export function selected(device: IDevice): Topology.ISelected | null {
    return device.kind === 'gpu' || device.kind === 'nic'
      ? { kind: device.kind, position: device.position }
      : null;
  }

  const NONE: readonly number[] = [];
  const seen = new WeakMap<readonly IRankPlace[], Map<string, number[]>>();

  /** The same list while the ranks are the same, so that a box is not drawn anew. */
  export function ranksOf(
    device: IDevice,
    ranks: readonly IRankPlace[]
  ): readonly number[] {
    let byGpu = seen.get(ranks);
    if (!byGpu) {
      byGpu = new Map();
      for (const one of ranks) {
        const id = one.gpu?.id ?? '';
        byGpu.set(id, [...(byGpu.get(id) ?? []), one.rank]);
      }
      seen.set(ranks, byGpu);
    }
    return byGpu.get(device.id) ?? NONE;
  }

  export function loads(
    graph: IGraph,
    sample: ITopologySample | null
  ): Map<string, Loads> {
    return new Map(
      graph.devices.map(device => {
        return [
          device.id,
          Object.fromEntries(
            kindsOf(device, graph).map(kind => [
              kind,
              loadOf(device, kind, sample, graph)
            ])
          )
        ];
      })
    );
  }

  export function listed(loads: Loads = {}): { kind: EdgeKind; load: ILoad }[] {
    return (Object.keys(loads) as EdgeKind[]).map(kind => ({
      kind,
      load: loads[kind]!
    }));
  }

  /** What is read out of each device, all but its loads. */
  export function labels(
    graph: IGraph,
    verdicts: Verdicts,
    ranks: readonly IRankPlace[],
    why: string,
    trans: TranslationBundle
  ): Map<string, string> {
    return new Map(
      graph.devices.map(device => {
        const own = ranksOf(device, ranks).map(rank =>
          trans.__('rank %1', rank)
        );
        const lines = linesAbout(device, graph, verdicts, why, trans);
        return [
          device.id,
          [nameOf(device, trans), ...own, ...lines].join(', ')
        ];
      })
    );
  }

  export function label(
    words: string,
    loads: Loads = {},
    live: boolean,
    trans: TranslationBundle
  ): string {
    const rough = live
      ? listed(loads).map(({ kind, load }) => roughLoad(kind, load, trans))
      : [];
    return [words, ...rough].join(', ');
  }

  export function name(
    snapshot: ITopologySnapshot,
    graph: IGraph,
    trans: TranslationBundle
  ): string {
    const count = (kind: IDevice['kind']): number =>
      graph.devices.filter(one => one.kind === kind).length;
    const { hostname } = snapshot.host;
    const parts = [
      isUnknown(hostname)
        ? trans.__('Topology')
        : trans.__('Topology of %1', orElse(hostname, '')),
      trans._n('%1 GPU', '%1 GPUs', count('gpu')),
      trans._n('%1 NIC', '%1 NICs', count('nic')),
      sourceWords(graph, trans)
    ];
    return parts.join(', ');
  }
}
