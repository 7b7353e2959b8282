import { IGraph } from './graph';

/**
 * The device that a key leads to: along the devices in their order, across them to
 * what a device's way leads to. Undefined where the key leads nowhere.
 */
export function stepTo(
  key: string,
  id: string,
  rows: boolean,
  graph: IGraph,
  partners: () => readonly string[]
): string | undefined {
  const ids = graph.devices.map(one => one.id);
  const at = ids.indexOf(id);
  const [back, on, ...across] = rows
    ? ['ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight']
    : ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown'];
  switch (key) {
    case back:
      return ids[at - 1];
    case on:
      return ids[at + 1];
    case 'Home':
      return ids[0];
    case 'End':
      return ids[ids.length - 1];
    default:
      return across.includes(key) ? partners()[0] : undefined;
  }
}
