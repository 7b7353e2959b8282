import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { isUnknown } from '../schema/known';
import { Edge } from './edges';
import { IDevice, IGraph } from './graph';
import { ILayout } from './layout';
import { EdgeKind, kindsOf, Loads } from './loads';
import { IRankPlace } from './ranks';
import { Verdicts } from './verdict';
import {
  branchTitle,
  kindName,
  loadWords,
  nameOf,
  nvlinkWords,
  sourceWords,
  verdictWords,
  whatItIs,
  whereItIs
} from './words';

/** The description of a device except its loads, one line each. */
export function linesAbout(
  device: IDevice,
  graph: IGraph,
  verdicts: Verdicts,
  ranks: readonly IRankPlace[],
  why: string,
  trans: TranslationBundle
): string[] {
  if (device.kind === 'no-gpu') {
    return [why];
  }
  return [
    whatItIs(device, why, trans),
    whereItIs(device, trans),
    Private.apart(device, graph, trans),
    nvlinkWords(device, graph, trans),
    ...Private.verdicts(device, graph, verdicts, trans),
    ...Private.fartherNics(device, verdicts, ranks, trans)
  ].filter(Boolean);
}

/**
 * The description of the device under the pointer, or else of the drawing.
 *
 * All descriptions share one place, as high as the highest, so that nothing moves.
 */
export const About = React.memo(
  (props: {
    graph: IGraph;
    layout: ILayout;
    verdicts: Verdicts;
    ranks: readonly IRankPlace[];
    why: string;
    shown: string | null;
    /** The loads of the shown device. */
    loads: Loads;
    live: boolean;
    trans: TranslationBundle;
  }): JSX.Element => {
    const { graph, layout, shown, loads, trans } = props;
    return (
      <div className="jp-gw-About" aria-hidden="true">
        <div className={Private.visible(shown === null)}>
          <Legend layout={layout} live={props.live} trans={trans} />
          <p>{Private.summary(graph, props.verdicts, props.why, trans)}</p>
          <p>{sourceWords(graph, trans)}</p>
        </div>
        {graph.devices.map(device => (
          <div key={device.id} className={Private.visible(shown === device.id)}>
            <Lines
              device={device}
              graph={graph}
              verdicts={props.verdicts}
              ranks={props.ranks}
              why={props.why}
              trans={trans}
            />
            {props.live &&
              kindsOf(device, graph).map(kind => (
                // The place of a load is kept while another device is shown.
                <p key={kind}>
                  {shown === device.id && loads[kind]
                    ? loadWords(kind, loads[kind], trans)
                    : '\u00a0'}
                </p>
              ))}
          </div>
        ))}
      </div>
    );
  }
);

/** The description of one device, except its loads. */
const Lines = React.memo(
  (props: {
    device: IDevice;
    graph: IGraph;
    verdicts: Verdicts;
    ranks: readonly IRankPlace[];
    why: string;
    trans: TranslationBundle;
  }): JSX.Element => {
    const { device, graph, verdicts, ranks, why, trans } = props;
    const lines = linesAbout(device, graph, verdicts, ranks, why, trans);
    return (
      <p>
        <b>{nameOf(device, trans)}</b> {lines[0]}
        {lines.slice(1).map((line, index) => (
          <React.Fragment key={index}>
            <br />
            {line}
          </React.Fragment>
        ))}
      </p>
    );
  }
);

/** The kinds of edges in the drawing, and how a load is drawn. */
function Legend(props: {
  layout: ILayout;
  live: boolean;
  trans: TranslationBundle;
}): JSX.Element {
  const { layout, live, trans } = props;
  const kinds = (['nvlink', 'pcie', 'network'] as const).filter(kind =>
    layout.edges.some(edge => edge.kind === kind)
  );
  return (
    <p className="jp-gw-Legend">
      {kinds.map(kind => (
        <Key key={kind} kind={kind} step={null} name={kindName(kind, trans)} />
      ))}
      {layout.crossings.length > 0 && (
        <span className="jp-gw-Legend-key">
          <svg width={22} height={12}>
            <path className="jp-gw-Edge-crossing" d="M1,6L21,6" />
          </svg>
          {trans.__('between CPUs')}
        </span>
      )}
      {live && (
        <>
          <Key kind="pcie" step={0} name={trans.__('idle')} />
          <Key kind="pcie" step={20} name={trans.__('busy')} />
          <span className="jp-gw-Legend-key">
            {trans.__('thin: not measured')}
          </span>
        </>
      )}
    </p>
  );
}

function Key(props: {
  kind: EdgeKind;
  step: number | null;
  name: string;
}): JSX.Element {
  const edge = {
    id: '',
    kind: props.kind,
    path: props.kind === 'network' ? 'M1,6L17,6' : 'M1,6L21,6',
    device: null,
    links: null
  };
  return (
    <span className="jp-gw-Legend-key">
      <svg width={22} height={12}>
        <Edge edge={edge} step={props.step} mod="" />
      </svg>
      {props.name}
    </span>
  );
}

namespace Private {
  /** The reason without what could be done: the findings have that. */
  function briefly(why: string): string {
    return why.split(';')[0];
  }

  export function apart(
    device: IDevice,
    graph: IGraph,
    trans: TranslationBundle
  ): string {
    const root = graph.roots.find(one => one.kind === 'apart');
    return root?.children.includes(device)
      ? branchTitle(root, graph, trans)
      : '';
  }

  /** Names in one line; each place in the drawing is as high as the longest of these. */
  function some(names: readonly string[], trans: TranslationBundle): string {
    const first = names.slice(0, MAX_NAMES).join(', ');
    return names.length > MAX_NAMES
      ? trans.__('%1 and %2 more', first, names.length - MAX_NAMES)
      : first;
  }

  const MAX_NAMES = 16;

  export function visible(yes: boolean): string {
    return yes ? '' : 'jp-gw-mod-hidden';
  }

  /** For a GPU, its nearest NICs; for a NIC, the GPUs without a nearer one. */
  export function verdicts(
    device: IDevice,
    graph: IGraph,
    verdicts: Verdicts,
    trans: TranslationBundle
  ): string[] {
    if (device.kind === 'gpu') {
      const found = verdicts.nearest(device);
      const names = some(
        found.map(one => one.nic.name),
        trans
      );
      return found.length > 0
        ? [
            trans.__(
              '%1: %2',
              verdictWords(found[0], names, trans),
              briefly(found[0].why)
            )
          ]
        : [];
    }
    const served = graph.devices
      .filter(one => one.kind === 'gpu')
      .flatMap(gpu => verdicts.nearest(gpu))
      .filter(one => one.nic.id === device.id);
    const groups = new Map<string, string[]>();
    for (const one of served) {
      const key = verdictWords(one, '%1', trans);
      groups.set(key, [...(groups.get(key) ?? []), one.gpu.name]);
    }
    return [...groups].map(([key, gpus]) =>
      key.replace('%1', some(gpus, trans))
    );
  }

  /** The NICs of a GPU's ranks that are not its nearest. */
  export function fartherNics(
    gpu: IDevice,
    verdicts: Verdicts,
    ranks: readonly IRankPlace[],
    trans: TranslationBundle
  ): string[] {
    const near = verdicts.nearest(gpu).map(one => one.nic.id);
    return ranks
      .filter(one => one.gpu?.id === gpu.id)
      .flatMap(({ rank, nic }) => {
        const verdict =
          nic && !near.includes(nic.id)
            ? verdicts.of(gpu).find(one => one.nic.id === nic.id)
            : undefined;
        return verdict
          ? [trans.__('rank %1 uses %2', rank, verdictWords(verdict, nic!.name, trans))] // prettier-ignore
          : [];
      });
  }

  export function summary(
    graph: IGraph,
    verdicts: Verdicts,
    why: string,
    trans: TranslationBundle
  ): string {
    if (graph.devices.some(one => one.kind === 'no-gpu')) {
      return trans.__('No GPU: %1.', why);
    }
    const gpus = graph.devices.filter(one => one.kind === 'gpu');
    const judged = gpus.filter(one => verdicts.of(one).length > 0);
    const hidden = graph.hidden
      ? trans.__('This VM hides its PCIe tree: each device is on its own root port.') // prettier-ignore
      : '';
    if (judged.length === 0) {
      return hidden;
    }
    const direct = judged.filter(gpu =>
      verdicts.of(gpu).some(one => one.possible === true)
    );
    const open = judged.some(gpu =>
      verdicts.of(gpu).some(one => isUnknown(one.possible))
    );
    const words =
      direct.length === 0 && open
        ? trans.__('GPUDirect RDMA: unknown.')
        : graph.left > 0
          ? trans.__(
              'GPUDirect RDMA: %1 of the %2 GPUs drawn reach a NIC.',
              direct.length,
              judged.length
            )
          : trans._n(
              'GPUDirect RDMA: %2 of %1 GPU reaches a NIC.',
              'GPUDirect RDMA: %2 of %1 GPUs reach a NIC.',
              judged.length,
              direct.length
            );
    return [words, hidden].filter(Boolean).join(' ');
  }
}
