import { IPair } from './graph';

/** The lane of each pair: as close to the devices as possible without touching another. */
export function lanesOf(
  pairs: readonly IPair[],
  places: ReadonlyMap<string, number>
): { of: Map<string, number>; count: number } {
  const spans = pairs
    .map(pair => {
      const ends = [pair.a, pair.b].map(id => places.get(id)!);
      return { id: pair.id, from: Math.min(...ends), to: Math.max(...ends) };
    })
    .sort((a, b) => a.to - a.from - (b.to - b.from) || a.from - b.from);
  const lanes: { from: number; to: number }[][] = [];
  const found = new Map<string, number>();
  for (const span of spans) {
    let lane = lanes.findIndex(taken =>
      taken.every(one => one.to < span.from || span.to < one.from)
    );
    if (lane < 0) {
      lane = lanes.push([]) - 1;
    }
    lanes[lane].push(span);
    found.set(span.id, lane);
  }
  return { of: found, count: lanes.length };
}
