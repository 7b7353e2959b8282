import { IGraph } from './graph';

/**
 * The next device for a key: along the devices in their order, or across to the other
 * ends of a device's paths. Undefined if there is none.
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
