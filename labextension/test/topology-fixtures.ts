import { ISample, readSample } from '../src/schema/sample';
import { ISnapshot, readSnapshot } from '../src/schema/snapshot';
import { Json, sample as plainSample } from './fixtures';
import a100WholePair from './fixtures/a100-40c-pair.json';
import a100Fraction from './fixtures/a100-4c.json';
import bridgedA100 from './fixtures/bridged-a100.json';
import hgxA100Ndv4 from './fixtures/hgx-a100-ndv4.json';
import hgxH100Host from './fixtures/hgx-h100-host.json';
import hgxH100Vm from './fixtures/hgx-h100-vm.json';
import mig from './fixtures/mig.json';
import nothing from './fixtures/nothing.json';
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

export function machine(name: string): ISnapshot {
  return readSnapshot(plain(name), 'snapshot');
}

export const MACHINES = Object.keys(ALL);

/** All GPUs and NICs at these bytes per second, each way. */
export function sampleAt(
  snapshot: ISnapshot,
  gpu: number,
  nic: number
): ISample {
  const { gpus, ...rest } = plainSample(snapshot.gpus.length);
  const data = {
    ...rest,
    gpus: snapshot.gpus.map((one, place) => ({
      ...gpus[place],
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
  return readSample(data, 'sample');
}
