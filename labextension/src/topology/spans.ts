/** The space of branches along the devices, and the number of levels. */
import { devicesBelow, IBranch, IDevice, IGraph, isBranch } from './graph';
import { COLUMNS, IMetrics } from './metrics';

/** The thickness of the bars at each depth, from the CPUs down. */
export function depths(roots: readonly IBranch[], m: IMetrics): number[] {
  const found: number[] = [];
  const visit = (branch: IBranch, depth: number): void => {
    found[depth] = Math.max(found[depth] ?? 0, m.thick[branch.kind]);
    branch.children.filter(isBranch).forEach(one => visit(one, depth + 1));
  };
  roots.forEach(root => visit(root, 0));
  return found;
}

/** The gap between two children: only branches have one. */
export function gap(
  children: IBranch['children'],
  place: number,
  m: IMetrics
): number {
  const apart = [children[place - 1], children[place]].some(isBranch);
  return apart ? m.branchGap : 0;
}

export function spanOf(
  node: IBranch | IDevice,
  slot: number,
  m: IMetrics
): number {
  if (!isBranch(node)) {
    return slot;
  }
  return node.children.reduce(
    (sum, child, place) =>
      sum +
      spanOf(child, slot, m) +
      (place > 0 ? gap(node.children, place, m) : 0),
    0
  );
}

/** The width of each device in columns. */
export function slotInColumns(graph: IGraph, width: number): number {
  const count = graph.roots.flatMap(devicesBelow).length;
  const gaps = graph.roots.reduce(
    (sum, root, index) =>
      sum + spanOf(root, 0, COLUMNS) + (index > 0 ? COLUMNS.nodeGap : 0),
    0
  );
  return Math.min(COLUMNS.mostSlot, (width - gaps) / Math.max(1, count));
}
