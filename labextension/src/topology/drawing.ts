import { useMemo } from 'react';

import { ISnapshot } from '../schema/snapshot';
import { IGraph } from './graph';
import { ILayout, layOut } from './layout';
import { IRankPlace, ITopologyRank, placeRanks } from './ranks';
import { readGraph } from './read';
import { Verdicts } from './verdict';

/** All that is drawn but loads: computed once for a snapshot (by its identity) and a width. */
export interface IDrawing {
  readonly graph: IGraph;
  readonly verdicts: Verdicts;
  readonly layout: ILayout;
  readonly ranks: readonly IRankPlace[];
}

export function useDrawing(
  snapshot: ISnapshot,
  ranks: readonly ITopologyRank[],
  most: number,
  width: number
): IDrawing {
  const graph = useMemo(() => readGraph(snapshot, most), [snapshot, most]);
  const verdicts = useMemo(
    () => new Verdicts(snapshot, graph),
    [snapshot, graph]
  );
  const layout = useMemo(() => layOut(graph, width), [graph, width]);
  const places = useMemo(() => placeRanks(ranks, graph), [ranks, graph]);
  return useMemo(
    () => ({ graph, verdicts, layout, ranks: places }),
    [graph, verdicts, layout, places]
  );
}
