import { useMemo } from 'react';

import { ITranslate } from '../common/translate';
import { ISnapshot } from '../schema/snapshot';
import { IGraph } from './graph';
import { ILayout, layOut } from './layout';
import { IRankPlace, ITopologyRank, placeRanks } from './ranks';
import { readGraph } from './read';
import { Verdicts } from './verdict';

/** The drawing without loads, computed once per snapshot (by identity) and width. */
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
  width: number,
  trans: ITranslate
): IDrawing {
  const graph = useMemo(
    () => readGraph(snapshot, most, trans),
    [snapshot, most, trans]
  );
  const verdicts = useMemo(
    () => new Verdicts(snapshot, graph, trans),
    [snapshot, graph, trans]
  );
  const layout = useMemo(() => layOut(graph, width), [graph, width]);
  const places = useMemo(() => placeRanks(ranks, graph), [ranks, graph]);
  return useMemo(
    () => ({ graph, verdicts, layout, ranks: places }),
    [graph, verdicts, layout, places]
  );
}
