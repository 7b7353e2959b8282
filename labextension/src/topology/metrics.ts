/** Sizes of the drawing, in CSS pixels. */
import { IBranch } from './graph';

export interface IMetrics {
  /** Whether devices are rows, one below the other. */
  readonly rows: boolean;
  /** The length of one device; `mostSlot` if there is space. */
  readonly leastSlot: number;
  readonly mostSlot: number;
  /** The gap between the boxes of two devices, inside their slots. */
  readonly slotGap: number;
  /** The gap between two branches of one branch, and between two nodes. */
  readonly branchGap: number;
  readonly nodeGap: number;
  /** The shortest bar that fits its node's name. */
  readonly leastNode: number;
  /** The thickness of the bars, and the gap between two levels. */
  readonly thick: Readonly<Record<IBranch['kind'], number>>;
  readonly levelGap: number;
  /** The depth of a device's box; rows use the remaining width. */
  readonly leafDepth: number;
  /** Beyond the devices: the gap to the fabric or the first lane, and their thickness. */
  readonly sideGap: number;
  readonly fabric: number;
  readonly lane: number;
  readonly laneLabel: number;
  /** The length of a NIC's outgoing edge. */
  readonly stub: number;
}

export const ROWS: IMetrics = {
  rows: true,
  leastSlot: 28,
  mostSlot: 28,
  slotGap: 4,
  branchGap: 6,
  nodeGap: 16,
  leastNode: 58,
  thick: { node: 20, bridge: 6, switch: 16, board: 18, apart: 20 },
  levelGap: 10,
  leafDepth: 0,
  sideGap: 18,
  fabric: 20,
  lane: 12,
  laneLabel: 16,
  stub: 12
};

export const COLUMNS: IMetrics = {
  rows: false,
  leastSlot: 52,
  mostSlot: 148,
  slotGap: 4,
  branchGap: 8,
  nodeGap: 24,
  leastNode: 0,
  thick: { node: 22, bridge: 6, switch: 18, board: 20, apart: 22 },
  levelGap: 14,
  leafDepth: 56,
  sideGap: 20,
  fabric: 22,
  lane: 12,
  laneLabel: 16,
  stub: 14
};
