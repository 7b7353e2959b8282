import { TranslationBundle } from '@jupyterlab/translation';
import React, { useMemo, useRef, useState } from 'react';

import { More } from '../common/some';
import { IHop } from '../schema/cluster';
import { Known } from '../schema/known';
import { ISnapshot } from '../schema/snapshot';
import { About } from './about';
import { Badge, Branches, Device } from './boxes';
import { IDrawing, useDrawing } from './drawing';
import { Edges, Step, stepOf } from './edges';
import { drawingName, fixedLabels, labelNow } from './labels';
import { IEdge, ILayout } from './layout';
import { ITopologySample, Loads, loadsOf } from './loads';
import { highlight } from './paths';
import { IPointer, ISelected, usePointer } from './pointer';
import { IRankPlace, ITopologyRank, ranksOf } from './ranks';
import { MAX_DRAWN } from './read';
import { Table } from './table';
import { useWidth } from './usewidth';
import { edgesOf, hopWords, Weakest } from './weakest';

const NO_RANKS: readonly ITopologyRank[] = [];

/**
 * The drawing of one VM: its CPUs, switches, GPUs, NICs and the links between them.
 *
 * A new sample only changes the loads.
 */
export function Topology(props: Topology.IProps): JSX.Element {
  const { snapshot, trans } = props;
  const root = useRef<HTMLDivElement>(null);
  const width = useWidth(root, props.width);
  const [most, setMost] = useState(MAX_DRAWN);
  const drawing = useDrawing(
    snapshot,
    props.ranks ?? NO_RANKS,
    most,
    width,
    trans
  );
  const { graph, layout } = drawing;
  const pointer = usePointer(drawing, root, props.onSelect);
  const loads = loadsOf(graph, props.sample ?? null, trans);
  const steps = Private.stepsOf(layout, loads);
  const hop = props.weakest ?? null;
  const weakest = useMemo(
    () => edgesOf(hop, graph, layout),
    [hop, graph, layout]
  );
  const shared = { drawing, hop, loads, pointer, steps, trans, weakest };
  const why = snapshot.probes.gpus.reason;
  return (
    <div
      className={Private.shape(layout, width)}
      ref={root}
      role="group"
      tabIndex={-1}
      aria-label={drawingName(snapshot, graph, trans)}
      onKeyDown={pointer.onKeyDown}
    >
      <Picture {...shared} isSampled={Boolean(props.sample)} why={why} />
      <Weakest hop={hop} isDrawn={weakest.length > 0} trans={trans} />
      <CpuRanks
        ranks={drawing.ranks}
        onHoverRank={pointer.onHoverRank}
        trans={trans}
      />
      <About
        {...drawing}
        why={why}
        shown={pointer.shown}
        loads={(pointer.shown && loads.get(pointer.shown)) || Private.NO_LOADS}
        live={[...steps.values()].some(step => step !== null)}
        trans={trans}
      />
      <More
        some={Private.some(graph.left, most, setMost)}
        what={trans.__('GPUs and NICs')}
        trans={trans}
      />
      <Table graph={graph} verdicts={drawing.verdicts} trans={trans} />
    </div>
  );
}

interface IPictureProps {
  drawing: IDrawing;
  pointer: IPointer;
  loads: ReadonlyMap<string, Loads>;
  steps: ReadonlyMap<string, Step>;
  hop: Known<IHop | null>;
  weakest: readonly IEdge[];
  /** Whether there is a sample, and therefore loads to describe. */
  isSampled: boolean;
  /** Why there is no GPU. */
  why: string;
  trans: TranslationBundle;
}

/** The edges, and above them the boxes. */
function Picture(props: IPictureProps): JSX.Element {
  const { drawing, hop, pointer, trans, weakest } = props;
  const { graph, layout } = drawing;
  return (
    <div
      className="jp-gw-Topology-drawing"
      style={{ width: layout.width, height: layout.height }}
    >
      <Edges
        layout={layout}
        steps={props.steps}
        lit={pointer.lit}
        weakest={weakest}
        hop={hop === null ? '' : hopWords(hop, false, trans)}
      />
      <Branches graph={graph} layout={layout} lit={pointer.lit} trans={trans} />
      <Devices {...props} />
    </div>
  );
}

function Devices(props: IPictureProps): JSX.Element {
  const { drawing, isSampled, loads, pointer, trans, why } = props;
  const { graph, layout, ranks, verdicts } = drawing;
  const labels = useMemo(
    () => fixedLabels(graph, verdicts, ranks, why, trans),
    [graph, verdicts, ranks, why, trans]
  );
  return (
    <>
      {graph.devices.map(device => (
        <Device
          key={device.id}
          device={device}
          box={layout.devices.get(device.id)!}
          label={labelNow(
            labels.get(device.id)!,
            loads.get(device.id)!,
            isSampled,
            trans
          )}
          why={why}
          ranks={ranksOf(device, ranks)}
          mod={highlight(pointer.lit, device.id)}
          pressed={pointer.pinned === device.id}
          inTabOrder={device.id === pointer.inTabOrder}
          onPoint={pointer.onHover}
          onPointRank={pointer.onHoverRank}
          onFocus={pointer.onFocus}
          onSelect={pointer.onToggle}
          trans={trans}
        />
      ))}
    </>
  );
}

/** The ranks that use no GPU. */
function CpuRanks(props: {
  ranks: readonly IRankPlace[];
  onHoverRank: (rank: number | null) => void;
  trans: TranslationBundle;
}): JSX.Element | null {
  const found = props.ranks.filter(one => one.gpu === null && !one.isLeftOut);
  return found.length === 0 ? null : (
    <p className="jp-gw-Topology-ranks">
      {props.trans.__('On CPUs:')}{' '}
      {found.map(one => (
        <Badge key={one.rank} rank={one.rank} onPoint={props.onHoverRank} />
      ))}
    </p>
  );
}

export namespace Topology {
  export interface IProps {
    snapshot: ISnapshot;

    /** The newest sample; without one no load is drawn. */
    sample?: ITopologySample | null;

    /** The ranks on this VM. Pass the same list while nothing changes. */
    ranks?: readonly ITopologyRank[];

    /** The weakest hop of the ranks' ring, if this VM has it; or why it is unknown. */
    weakest?: Known<IHop | null>;

    /** A device was selected, or (null) released. */
    onSelect?: (device: ISelected | null) => void;

    /** Width of the drawing in CSS pixels; by default that of its parent. */
    width?: number;

    trans: TranslationBundle;
  }
}

namespace Private {
  /** If rows leave enough space, the description of a device is shown next to them. */
  export function shape(layout: ILayout, width: number): string {
    const isWide = layout.rows && width - layout.width >= LEAST_WIDTH_NEXT;
    const columns = layout.rows ? '' : 'jp-gw-mod-columns';
    return `jp-gw-Topology ${columns} ${isWide ? 'jp-gw-mod-wide' : ''}`;
  }

  const LEAST_WIDTH_NEXT = 240;

  export const NO_LOADS: Loads = {};

  /** The drawn devices, and more of them on demand. */
  export function some(
    left: number,
    most: number,
    setMost: (most: number) => void
  ): React.ComponentProps<typeof More>['some'] {
    return {
      left,
      step: left > 0 || most > MAX_DRAWN ? MAX_DRAWN : 0,
      more: () => setMost(most + MAX_DRAWN),
      fewer: () => setMost(MAX_DRAWN)
    };
  }

  /** The fill level of each edge, by its id. */
  export function stepsOf(
    layout: ILayout,
    loads: ReadonlyMap<string, Loads>
  ): Map<string, Step> {
    return new Map(
      layout.edges.map(({ device, id, kind }) => [
        id,
        device === null
          ? null
          : stepOf(loads.get(device)?.[kind]?.share ?? { unknown: '' })
      ])
    );
  }
}
