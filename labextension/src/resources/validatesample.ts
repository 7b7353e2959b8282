import {
  dictionary,
  known,
  knownIfSent,
  list,
  nullable,
  number,
  oneOf,
  Reader,
  record,
  string
} from '../common/validate';
import { IGpuSample, INicSample, IProcess, ISample } from './interfaces';
import { checkVersion } from './validate';

/** The version that this page reads. */
export const SAMPLE_VERSION = 1;

const gpu = record<IGpuSample>({
  index: number,
  uuid: knownIfSent(string),
  utilization_percent: known(number),
  memory_used_bytes: known(number),
  memory_total_bytes: known(number),
  power_w: known(number),
  power_limit_w: knownIfSent(number),
  temperature_c: known(number),
  sm_clock_mhz: knownIfSent(number),
  memory_clock_mhz: knownIfSent(number),
  held_by: knownIfSent(list(string)),
  nvlink_tx_bytes_per_s: knownIfSent(number),
  nvlink_rx_bytes_per_s: knownIfSent(number),
  pcie_tx_bytes_per_s: knownIfSent(number),
  pcie_rx_bytes_per_s: knownIfSent(number),
  idle_s: knownIfSent(number)
});

const nic = record<INicSample>({
  name: string,
  tx_bytes_per_s: known(number),
  rx_bytes_per_s: known(number),
  rdma_tx_bytes_per_s: knownIfSent(number),
  rdma_rx_bytes_per_s: knownIfSent(number),
  tx_packets_per_s: knownIfSent(number),
  rx_packets_per_s: knownIfSent(number),
  rdma_tx_packets_per_s: knownIfSent(number),
  rdma_rx_packets_per_s: knownIfSent(number),
  cnp_sent_per_s: knownIfSent(number),
  cnp_handled_per_s: knownIfSent(number),
  ecn_marked_per_s: knownIfSent(number),
  errors: knownIfSent(dictionary(known(number)))
});

const process = record<IProcess>({
  pid: number,
  name: string,
  kind: oneOf('kernel', 'rank', 'other'),
  kernel_id: nullable(string),
  notebook: nullable(string),
  cluster: nullable(string),
  rank: nullable(number),
  cpu_percent: known(number),
  memory_bytes: known(number),
  gpus: list(record({ index: number, memory_used_bytes: known(number) }))
});

const sample = record<ISample>({
  time: number,
  cpu: record({ percent: known(number) }),
  memory: record({ used_bytes: known(number), total_bytes: known(number) }),
  gpus: list(gpu),
  nics: list(nic),
  processes: knownIfSent(list(process))
});

/** Reads a sample as a kernel passes it on, without a version of its own. */
export const readSample: Reader<ISample> = sample;

/** Throws an error that names the field and what was found in it. */
export function validateSample(data: unknown): ISample {
  checkVersion(data, 'sample', SAMPLE_VERSION);
  return sample(data, 'sample');
}
