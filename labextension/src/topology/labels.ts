/** The labels of the drawing and of each device for screen readers. */
import { TranslationBundle } from '@jupyterlab/translation';

import { isUnknown } from '../schema/known';
import { ISnapshot } from '../schema/snapshot';
import { linesAbout } from './about';
import { IDevice, IGraph } from './graph';
import { EdgeKind, Loads } from './loads';
import { IRankPlace, ranksOf } from './ranks';
import { Verdicts } from './verdict';
import { nameOf, roughLoad, sourceWords } from './words';

/** The labels by device id, without loads. */
export function fixedLabels(
  graph: IGraph,
  verdicts: Verdicts,
  ranks: readonly IRankPlace[],
  why: string,
  trans: TranslationBundle
): Map<string, string> {
  return new Map(
    graph.devices.map(device => {
      const own = ranksOf(device, ranks).map(rank => trans.__('rank %1', rank));
      const lines = linesAbout(device, graph, verdicts, ranks, why, trans);
      return [device.id, [nameOf(device, trans), ...own, ...lines].join(', ')];
    })
  );
}

/** The label with rounded loads, so that it is constant while little changes. */
export function labelNow(
  fixed: string,
  loads: Loads,
  live: boolean,
  trans: TranslationBundle
): string {
  const kinds = live ? (Object.keys(loads) as EdgeKind[]) : [];
  const rough = kinds.map(kind => roughLoad(kind, loads[kind]!, trans));
  return [fixed, ...rough].join(', ');
}

export function drawingName(
  snapshot: ISnapshot,
  graph: IGraph,
  trans: TranslationBundle
): string {
  const count = (kind: IDevice['kind']): number =>
    graph.devices.filter(one => one.kind === kind).length;
  const { hostname } = snapshot.host;
  return [
    isUnknown(hostname)
      ? trans.__('Topology')
      : trans.__('Topology of %1', hostname),
    trans._n('%1 GPU', '%1 GPUs', count('gpu')),
    trans._n('%1 NIC', '%1 NICs', count('nic')),
    sourceWords(graph, trans)
  ].join(', ');
}
