import { readFileSync } from 'fs';
import { join } from 'path';

import { ITopologySample, ITopologySnapshot } from '../src/topology/interfaces';
import { validateTopology } from '../src/topology/validate';
import { Json } from './fixtures';

/** The plain JSON of a machine of `fixtures/`, which the Python code made. */
export function plain(name: string): Json {
  const file = join(__dirname, 'fixtures', `${name}.json`);
  return JSON.parse(readFileSync(file, 'utf-8'));
}

export function machine(name: string): ITopologySnapshot {
  return validateTopology(plain(name));
}

export const MACHINES = [
  'nothing',
  'a100-4c',
  'a100-40c-pair',
  'bridged-a100',
  'hgx-h100-vm',
  'hgx-h100-host',
  'hgx-a100-ndv4',
  'mig',
  'sixteen-from-a-file'
];

/** All GPUs and NICs at these bytes per second, each way. */
export function sampleAt(
  snapshot: ITopologySnapshot,
  gpu: number,
  nic: number
): ITopologySample {
  return {
    gpus: snapshot.gpus.map(one => ({
      index: one.index,
      uuid: one.uuid,
      nvlink_tx_bytes_per_s: gpu,
      nvlink_rx_bytes_per_s: gpu,
      pcie_tx_bytes_per_s: { unknown: 'not reported in a vGPU guest' },
      pcie_rx_bytes_per_s: { unknown: 'not reported in a vGPU guest' }
    })),
    nics: snapshot.nics.map(one => ({
      name: one.name,
      tx_bytes_per_s: nic,
      rx_bytes_per_s: 0
    }))
  };
}
