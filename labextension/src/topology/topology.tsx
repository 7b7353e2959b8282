import { TranslationBundle } from '@jupyterlab/translation';
import React, { useCallback, useMemo, useRef, useState } from 'react';

import { More } from '../common/some';
import { ISnapshot } from '../schema/snapshot';
import { About } from './about';
import { Badge, Branches, Device } from './boxes';
import { Edges, stepOf } from './edges';
import { IDevice } from './graph';
import { drawingName, fixedLabels, labelNow } from './labels';
import { ILayout, layOut } from './layout';
import { ITopologySample, Loads, loadsOf } from './loads';
import { litBy, partners, Pointed } from './paths';
import { ITopologyRank, placeRanks, ranksOf } from './ranks';
import { MOST_DRAWN, readGraph } from './read';
import { stepTo } from './steps';
import { Table } from './table';
import { useWidth } from './usewidth';
import { Verdicts } from './verdict';

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
  const [most, setMost] = useState(MOST_DRAWN);
  const graph = useMemo(() => readGraph(snapshot, most), [snapshot, most]);
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
    () => fixedLabels(graph, verdicts, ranks, why, trans),
    [graph, verdicts, ranks, why, trans]
  );
  const loads = loadsOf(graph, sample);
  const steps = new Map(
    layout.edges.map(edge => [
      edge.id,
      edge.device === null
        ? null
        : stepOf(loads.get(edge.device)?.[edge.kind]?.share ?? { unknown: '' })
    ])
  );
  const shownLoads = (shown && loads.get(shown)) || Private.NO_LOADS;
  const homeless = ranks.filter(one => one.gpu === null && !one.isLeftOut);
  return (
    <div
      className={Private.shape(layout, width)}
      ref={root}
      role="group"
      tabIndex={-1}
      aria-label={drawingName(snapshot, graph, trans)}
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
            label={labelNow(
              words.get(device.id)!,
              loads.get(device.id)!,
              sample !== null,
              trans
            )}
            why={why}
            ranks={ranksOf(device, ranks)}
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
        ranks={ranks}
        why={why}
        shown={shown}
        loads={shownLoads}
        live={[...steps.values()].some(step => step !== null)}
        trans={trans}
      />
      <More
        some={{
          left: graph.left,
          step: graph.left > 0 || most > MOST_DRAWN ? MOST_DRAWN : 0,
          more: () => setMost(most + MOST_DRAWN),
          fewer: () => setMost(MOST_DRAWN)
        }}
        what={trans.__('GPUs and NICs')}
        trans={trans}
      />
      <Table graph={graph} verdicts={verdicts} trans={trans} />
    </div>
  );
}

export namespace Topology {
  export interface IProps {
    snapshot: ISnapshot;

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
  /** Where rows leave room, what is said of a device stands beside them. */
  export function shape(layout: ILayout, width: number): string {
    const beside = layout.rows && width - layout.width >= LEAST_BESIDE;
    const columns = layout.rows ? '' : 'jp-gw-mod-columns';
    return `jp-gw-Topology ${columns} ${beside ? 'jp-gw-mod-beside' : ''}`;
  }

  const LEAST_BESIDE = 240;

  export const NO_LOADS: Loads = {};

  export function selected(device: IDevice): Topology.ISelected | null {
    return device.kind === 'gpu' || device.kind === 'nic'
      ? { kind: device.kind, position: device.position }
      : null;
  }
}
