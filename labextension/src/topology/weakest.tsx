/** The weakest hop of the ranks' ring: its edges in the drawing, and its description. */
import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { compact } from '../common/format';
import { IHop } from '../schema/cluster';
import { isUnknown, Known } from '../schema/known';
import { IDevice, IGraph } from './graph';
import { IEdge, ILayout } from './layout';

/** The edges that are the hop's; none if the drawing does not have its link. */
export function edgesOf(
  hop: Known<IHop | null>,
  graph: IGraph,
  layout: ILayout
): readonly IEdge[] {
  if (hop === null || isUnknown(hop)) {
    return [];
  }
  const ids = Private.idsOf(hop, graph);
  return layout.edges.filter(edge => ids.includes(edge.id));
}

/** The hop in words; or why it is unknown. */
export function hopWords(
  hop: Known<IHop>,
  isLeftOut: boolean,
  trans: TranslationBundle
): string {
  if (isUnknown(hop)) {
    return trans.__('Weakest hop of the ring unknown: %1', hop.unknown);
  }
  const rate = isUnknown(hop.gb_per_s)
    ? trans.__('unknown rate')
    : trans.__('%1 GB/s', compact(hop.gb_per_s));
  const words = trans.__(
    'Weakest hop of the ring: %1, %2, from rank %3 to rank %4',
    hop.name,
    rate,
    hop.ranks[0],
    hop.ranks[1]
  );
  return isLeftOut ? trans.__('%1 (not in the drawing)', words) : words;
}

/** An outline around an edge, whose own colour has another meaning. */
export function WeakestEdge(props: {
  edge: Pick<IEdge, 'path'>;
  title?: string;
}): JSX.Element {
  const { edge, title } = props;
  return (
    <g className="jp-gw-Edge-weakest">
      {title && <title>{title}</title>}
      <path className="jp-gw-Edge-casing" d={edge.path} />
      <path className="jp-gw-Edge-casing jp-gw-mod-inner" d={edge.path} />
    </g>
  );
}

/** The hop in words, after the key of its mark; nothing without a ring. */
export function Weakest(props: {
  hop: Known<IHop | null>;
  /** Whether its edge is marked in the drawing; `null` without a drawing. */
  isDrawn: boolean | null;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { hop, isDrawn, trans } = props;
  return hop === null ? null : (
    <p className="jp-gw-Topology-weakest">
      {isDrawn && (
        <svg width={26} height={16} aria-hidden="true">
          <WeakestEdge edge={{ path: 'M8,8L18,8' }} />
          <path className="jp-gw-Edge-sample" d="M5,8L21,8" />
        </svg>
      )}
      <span>{hopWords(hop, isDrawn === false, trans)}</span>
    </p>
  );
}

namespace Private {
  export function idsOf(hop: IHop, graph: IGraph): string[] {
    const at = (address: string): IDevice[] =>
      graph.devices.filter(one => one.address === address);
    switch (hop.kind) {
      case 'network':
        return graph.devices
          .filter(one => one.nic?.name === hop.end)
          .map(one => `out-${one.id}`);
      case 'PCIe':
        return at(hop.end).map(one => `up-${one.id}`);
      case 'NVLink':
        return nvlinks(hop.devices.flatMap(at), graph);
      default:
        return [];
    }
  }

  function nvlinks(ends: readonly IDevice[], graph: IGraph): string[] {
    const ids = ends.map(one => one.id);
    const pair = graph.pairs.find(
      one => ids.includes(one.a) && ids.includes(one.b)
    );
    return pair ? [pair.id] : ids.map(id => `fabric-${id}`);
  }
}
