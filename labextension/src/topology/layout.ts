/**
 * The positions in the drawing, computed from a graph and a width in CSS pixels.
 *
 * A tree has two axes: `u` goes along the devices, `v` from the CPUs down to them. A
 * sidebar has rows (v to the right, u down), a wide page has columns (v down, u to the
 * right). A branch is a bar as long as everything below it, so that every edge is
 * straight.
 */
import { Known } from '../schema/known';
import { IBranch, IDevice, IGraph, isBranch } from './graph';
import { lanesOf } from './lanes';
import { EdgeKind } from './loads';
import { COLUMNS, IMetrics, ROWS } from './metrics';
import { depths, gap, slotInColumns, spanOf } from './spans';

export interface IBox {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface IEdge {
  /** `up-…` to the node above a device or branch, `out-…` of a NIC, or a pair's. */
  readonly id: string;
  readonly kind: EdgeKind;
  readonly path: string;
  /** The device whose counters measure its load, or null. */
  readonly device: string | null;
  /** Number of links, for NVLinks. */
  readonly links: Known<number> | null;
}

export interface ILayout {
  readonly rows: boolean;
  readonly width: number;
  readonly height: number;
  readonly devices: ReadonlyMap<string, IBox>;
  readonly branches: readonly { branch: IBranch; box: IBox }[];
  readonly edges: readonly IEdge[];
  /** From the CPUs of one node to those of the next. */
  readonly crossings: readonly { id: string; path: string }[];
  readonly fabric: IBox | null;
  /** The label of a pair's edge: its position, and the number of links. */
  readonly pairs: readonly { id: string; box: IBox; links: Known<number> }[];
  /** The node above each device and branch, by their ids. */
  readonly parents: ReadonlyMap<string, string>;
}

const MAX_ROWS_WIDTH = 520;
/** With fewer devices than this, rows are used for any width. */
const LEAST_COLUMNS = 5;
const LEAST_COLUMNS_WIDTH = 600;
/** Names up to `mlx5_0` fit the narrowest column; longer ones need more. */
const LONG_NAME = 6;
const FOR_LONG_NAMES = 8;

export function layOut(graph: IGraph, width: number): ILayout {
  const columns = slotInColumns(graph, width);
  const long = graph.devices.some(one => one.name.length > LONG_NAME);
  const wide =
    width >= LEAST_COLUMNS_WIDTH &&
    graph.devices.length >= LEAST_COLUMNS &&
    columns >= COLUMNS.leastSlot + (long ? FOR_LONG_NAMES : 0);
  return wide
    ? new Drawing(graph, COLUMNS, width, columns).done()
    : new Drawing(
        graph,
        ROWS,
        Math.min(width, MAX_ROWS_WIDTH),
        ROWS.leastSlot
      ).done();
}

class Drawing {
  constructor(
    private readonly _graph: IGraph,
    private readonly _m: IMetrics,
    private readonly _width: number,
    private readonly _slot: number
  ) {
    const ids = new Map(_graph.devices.map((one, index) => [one.id, index]));
    const lanes = lanesOf(_graph.pairs, ids);
    this._lanes = lanes.count;
    const far = _graph.fabric
      ? _m.sideGap + _m.fabric
      : _graph.pairs.length > 0
        ? _m.sideGap + lanes.count * _m.lane + _m.laneLabel
        : _graph.devices.some(one => one.kind === 'nic')
          ? _m.stub + 4
          : 0;
    this._depths = depths(_graph.roots, _m);
    this._leaf = this._depths.reduce((sum, one) => sum + one + _m.levelGap, 0);
    this._leafEnd = _m.rows ? _width - far : this._leaf + _m.leafDepth;
    this._vEnd = this._leafEnd + far;
    this._graph.roots.forEach((root, index) => this._root(root, index));
    this._far(lanes.of);
  }

  done(): ILayout {
    const u = Math.max(0, this._u);
    return {
      rows: this._m.rows,
      width: this._m.rows ? this._width : u,
      height: this._m.rows ? u : this._vEnd,
      devices: this._devices,
      branches: this._branches,
      edges: this._edges,
      crossings: this._crossings,
      fabric: this._fabric,
      pairs: this._pairs,
      parents: this._parents
    };
  }

  private _root(root: IBranch, index: number): void {
    const start = this._u + (index > 0 ? this._m.nodeGap : 0);
    const span = Math.max(spanOf(root, this._slot, this._m), this._m.leastNode);
    const before = this._branches.find(
      one => one.branch.id === this._graph.roots[index - 1]?.id
    );
    this._u = start;
    this._branch(root, 0, 0);
    this._u = start + span;
    const drawn = this._branches.find(one => one.branch === root)!;
    drawn.box = this._box(start, 0, span, this._depths[0]);
    if (before && root.kind === 'node' && before.branch.kind === 'node') {
      const middle = this._depths[0] / 2;
      this._crossings.push({
        id: `cross-${index - 1}`,
        path: this._line([start - this._m.nodeGap, middle], [start, middle])
      });
    }
  }

  /** Draw a branch and everything below it, starting at `_u`; `v` is the start of its bar. */
  private _branch(branch: IBranch, depth: number, v: number): void {
    const start = this._u;
    const thick = this._m.thick[branch.kind];
    const index = this._branches.length;
    this._branches.push({ branch, box: this._box(start, v, 0, thick) });
    branch.children.forEach((child, place) => {
      this._u += place > 0 ? gap(branch.children, place, this._m) : 0;
      const from = this._u;
      this._parents.set(child.id, branch.id);
      if (isBranch(child)) {
        const next = v + this._depths[depth] + this._m.levelGap;
        this._branch(child, depth + 1, next);
        this._up(child.id, from, this._u, v + thick, next, null, branch);
      } else {
        this._u += this._slot;
        this._leafAt(child, from);
        const loaded = child.kind === 'gpu' ? child.id : null;
        this._up(child.id, from, this._u, v + thick, this._leaf, loaded, branch); // prettier-ignore
      }
    });
    const span = this._u - start;
    this._branches[index].box = this._box(start, v, span, thick);
  }

  private _leafAt(device: IDevice, u: number): void {
    const { slotGap } = this._m;
    const depth = this._leafEnd - this._leaf;
    const box = this._box(u + slotGap / 2, this._leaf, this._slot - slotGap, depth); // prettier-ignore
    this._devices.set(device.id, box);
    this._middles.set(device.id, u + this._slot / 2);
    if (device.kind === 'nic') {
      const middle = u + this._slot / 2;
      this._edges.push({
        id: `out-${device.id}`,
        kind: 'network',
        path: this._line([middle, this._leafEnd], [middle, this._leafEnd + this._m.stub]), // prettier-ignore
        device: device.id,
        links: null
      });
    }
  }

  private _up(
    id: string,
    from: number,
    to: number,
    v: number,
    next: number,
    device: string | null,
    above: IBranch
  ): void {
    if (above.kind === 'apart' || id === 'no-gpu') {
      return;
    }
    const middle = (from + to) / 2;
    const path = this._line([middle, v], [middle, next]);
    this._edges.push({ id: `up-${id}`, kind: 'pcie', path, device, links: null }); // prettier-ignore
  }

  /** Draw what is beyond the devices: the fabric, or pairs in their own lanes. */
  private _far(lanes: ReadonlyMap<string, number>): void {
    const { fabric, pairs } = this._graph;
    const start = this._leafEnd;
    if (fabric) {
      const middles = fabric.members.map(one => this._middles.get(one.id)!);
      const first = Math.min(...middles) - this._slot / 2;
      const last = Math.max(...middles) + this._slot / 2;
      const gap = this._m.slotGap / 2;
      const v = start + this._m.sideGap;
      this._fabric = this._box(first + gap, v, last - first - 2 * gap, this._m.fabric); // prettier-ignore
      fabric.members.forEach((one, index) =>
        this._edges.push({
          id: `fabric-${one.id}`,
          kind: 'nvlink',
          path: this._line([middles[index], start], [middles[index], v]),
          device: one.id,
          links: one.links
        })
      );
    }
    for (const pair of pairs) {
      this._pair(pair, fabric ? 0 : lanes.get(pair.id)!);
    }
  }

  private _pair(pair: IGraph['pairs'][number], lane: number): void {
    const start = this._leafEnd;
    const v = start + this._m.sideGap + lane * this._m.lane;
    const [a, b] = [pair.a, pair.b].map(id => this._end(id, pair.id));
    this._edges.push({
      id: pair.id,
      kind: 'nvlink',
      path: this._line([a, start], [a, v], [b, v], [b, start]),
      device: this._only(pair.a) ? pair.a : null,
      links: pair.links
    });
    const [low, high] = [Math.min(a, b), Math.max(a, b)];
    const box = this._box(low, v + 5, high - low, this._m.laneLabel - 5);
    if (this._lanes === 1) {
      this._pairs.push({ id: pair.id, box, links: pair.links });
    }
  }

  /** The start of an edge to one of a GPU's peers, so that several are drawn side by side. */
  private _end(device: string, pair: string): number {
    const all = this._graph.pairs.filter(
      one => one.a === device || one.b === device
    );
    const place = all.findIndex(one => one.id === pair);
    const step = Math.min(6, (this._slot - 8) / all.length);
    return this._middles.get(device)! + (place - (all.length - 1) / 2) * step;
  }

  /** Whether a GPU's counters, which include all of its links, belong to this pair. */
  private _only(id: string): boolean {
    const all = this._graph.pairs.filter(one => one.a === id || one.b === id);
    return all.length === 1 && !this._graph.fabric;
  }

  private _box(u: number, v: number, along: number, deep: number): IBox {
    return this._m.rows
      ? { x: v, y: u, width: deep, height: along }
      : { x: u, y: v, width: along, height: deep };
  }

  private _line(...points: [number, number][]): string {
    const at = points.map(([u, v]) => (this._m.rows ? `${v},${u}` : `${u},${v}`)); // prettier-ignore
    return `M${at.join('L')}`;
  }

  private _u = 0;
  private _lanes: number;
  private _leaf: number;
  private _leafEnd: number;
  private _vEnd: number;
  private _depths: number[];
  private _fabric: IBox | null = null;
  private _devices = new Map<string, IBox>();
  private _middles = new Map<string, number>();
  private _parents = new Map<string, string>();
  private _branches: { branch: IBranch; box: IBox }[] = [];
  private _edges: IEdge[] = [];
  private _crossings: { id: string; path: string }[] = [];
  private _pairs: { id: string; box: IBox; links: Known<number> }[] = [];
}
