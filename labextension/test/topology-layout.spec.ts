import { IBox, ILayout, layOut } from '../src/topology/layout';
import { readGraph } from '../src/topology/read';
import { machine, MACHINES } from './topology-fixtures';

const WIDTHS = [200, 260, 320, 420, 700, 1000, 1200];

const cases = MACHINES.flatMap(name =>
  WIDTHS.map(width => [name, width] as const)
);

const drawn = (name: string, width: number): ILayout =>
  layOut(readGraph(machine(name)), width);

function boxes(layout: ILayout): IBox[] {
  const bars = layout.branches.map(one => one.box);
  return [
    ...layout.devices.values(),
    ...bars,
    ...(layout.fabric ? [layout.fabric] : [])
  ];
}

function overlap(a: IBox, b: IBox): boolean {
  return (
    a.x < b.x + b.width - 0.01 &&
    b.x < a.x + a.width - 0.01 &&
    a.y < b.y + b.height - 0.01 &&
    b.y < a.y + a.height - 0.01
  );
}

function points(path: string): [number, number][] {
  return path
    .slice(1)
    .split('L')
    .map(one => one.split(',').map(Number) as [number, number]);
}

function touches([x, y]: [number, number], box: IBox): boolean {
  return (
    x >= box.x - 0.01 &&
    x <= box.x + box.width + 0.01 &&
    y >= box.y - 0.01 &&
    y <= box.y + box.height + 0.01
  );
}

describe('the layout', () => {
  it.each(cases)('of %s at %i px overlaps nowhere', (name, width) => {
    const all = boxes(drawn(name, width));
    all.forEach((a, at) =>
      all.slice(at + 1).forEach(b => expect(overlap(a, b)).toBe(false))
    );
  });

  it.each(cases)('of %s at %i px stays within its area', (name, width) => {
    const layout = drawn(name, width);
    expect(layout.width).toBeLessThanOrEqual(width);
    for (const box of boxes(layout)) {
      expect(box.x).toBeGreaterThanOrEqual(0);
      expect(box.y).toBeGreaterThanOrEqual(0);
      expect(box.x + box.width).toBeLessThanOrEqual(layout.width + 0.01);
      expect(box.y + box.height).toBeLessThanOrEqual(layout.height + 0.01);
      expect(Math.min(box.width, box.height)).toBeGreaterThan(0);
    }
    for (const [x, y] of layout.edges.flatMap(one => points(one.path))) {
      expect(x).toBeLessThanOrEqual(layout.width);
      expect(y).toBeLessThanOrEqual(layout.height);
    }
  });

  it.each(cases)('of %s at %i px joins what it says', (name, width) => {
    const layout = drawn(name, width);
    const bars = new Map(
      layout.branches.map(one => [one.branch.id, one.box] as const)
    );
    for (const edge of layout.edges.filter(one => one.id.startsWith('up-'))) {
      const id = edge.id.slice(3);
      const [from, to] = points(edge.path);
      expect(touches(from, bars.get(layout.parents.get(id)!)!)).toBe(true);
      const box = layout.devices.get(id) ?? bars.get(id)!;
      expect(touches(to, box)).toBe(true);
    }
    for (const edge of layout.edges.filter(one => one.kind === 'nvlink')) {
      const ends = points(edge.path);
      const all = [...layout.devices.values(), layout.fabric].filter(Boolean);
      for (const end of [ends[0], ends[ends.length - 1]]) {
        expect(all.some(box => touches(end, box!))).toBe(true);
      }
    }
  });

  it('has rows in a sidebar, columns on a wide page, rows for what is long there too', () => {
    expect(drawn('hgx-h100-vm', 420).rows).toBe(true);
    expect(drawn('hgx-h100-vm', 1000).rows).toBe(false);
    expect(drawn('sixteen-from-a-file', 1000).rows).toBe(true);
    expect(drawn('nothing', 1200).rows).toBe(true);
  });

  it('gives a finger or a pointer 24 px of each device', () => {
    for (const [name, width] of cases) {
      for (const box of drawn(name, width).devices.values()) {
        expect(Math.min(box.width, box.height)).toBeGreaterThanOrEqual(24);
      }
    }
  });

  it('leaves room for a name in a narrow sidebar', () => {
    for (const name of MACHINES) {
      for (const box of drawn(name, 200).devices.values()) {
        expect(box.width).toBeGreaterThan(80);
      }
    }
  });

  it('keeps pairs that cross in lanes of their own', () => {
    const graph = readGraph(machine('hgx-h100-vm'));
    const mesh = {
      ...graph,
      fabric: null,
      pairs: [
        ['gpu-0', 'gpu-4'],
        ['gpu-1', 'gpu-5'],
        ['gpu-6', 'gpu-7'],
        ['gpu-0', 'gpu-1']
      ].map(([a, b]) => ({ id: `${a}${b}`, a, b, links: 2 }))
    };
    const layout = layOut(mesh, 300);
    const lanes = layout.edges
      .filter(one => one.kind === 'nvlink')
      .map(one => points(one.path)[1][0]);
    expect(new Set(lanes.slice(0, 2)).size).toBe(2);
    expect(lanes[2]).toBe(lanes[3]);
    expect(Math.max(...lanes)).toBeLessThan(layout.width);
  });

  it('is the same each time', () => {
    expect(drawn('mig', 300)).toEqual(drawn('mig', 300));
  });
});
