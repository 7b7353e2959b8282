import { ITopologySample, ITopologySnapshot } from '../src/topology/interfaces';
import { validateTopology } from '../src/topology/validate';
import { Json } from './fixtures';
import nothing from './fixtures/nothing.json';
import a100Fraction from './fixtures/a100-4c.json';
import a100WholePair from './fixtures/a100-40c-pair.json';
import bridgedA100 from './fixtures/bridged-a100.json';
import hgxH100Vm from './fixtures/hgx-h100-vm.json';
import hgxH100Host from './fixtures/hgx-h100-host.json';
import hgxA100Ndv4 from './fixtures/hgx-a100-ndv4.json';
import mig from './fixtures/mig.json';
import sixteenFromAFile from './fixtures/sixteen-from-a-file.json';

const ALL: Record<string, Json> = {
  nothing: nothing,
  'a100-4c': a100Fraction,
  'a100-40c-pair': a100WholePair,
  'bridged-a100': bridgedA100,
  'hgx-h100-vm': hgxH100Vm,
  'hgx-h100-host': hgxH100Host,
  'hgx-a100-ndv4': hgxA100Ndv4,
  mig: mig,
  'sixteen-from-a-file': sixteenFromAFile
};

/** The plain JSON of a machine of `fixtures/`, which the Python code made. */
export function plain(name: string): Json {
  return JSON.parse(JSON.stringify(ALL[name]));
}

export function machine(name: string): ITopologySnapshot {
  return validateTopology(plain(name));
}

export const MACHINES = Object.keys(ALL);

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
