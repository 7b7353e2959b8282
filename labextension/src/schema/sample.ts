/** The use of one machine at one moment. */
import {
  dictionary,
  Infer,
  known,
  knownIfSent,
  list,
  nullable,
  number,
  oneOf,
  record,
  string,
  versioned
} from './reader';

/** The version that this page reads. */
export const SAMPLE_VERSION = 1;

const gpu = record({
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
  /** What currently limits the clocks; empty if nothing does. */
  held_by: knownIfSent(list(string)),
  nvlink_tx_bytes_per_s: knownIfSent(number),
  nvlink_rx_bytes_per_s: knownIfSent(number),
  pcie_tx_bytes_per_s: knownIfSent(number),
  pcie_rx_bytes_per_s: knownIfSent(number),
  /** Seconds without activity while a process has memory allocated on it. */
  idle_s: knownIfSent(number)
});

const nic = record({
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
  /** Errors per second, by counter name. */
  errors: knownIfSent(dictionary(known(number)))
});

/** A Jupyter kernel, a rank, or another process that uses a GPU. */
const process = record({
  pid: number,
  name: string,
  kind: oneOf('kernel', 'rank', 'other'),
  kernel_id: nullable(string),
  /** Path of the notebook, as the Jupyter server knows it. */
  notebook: nullable(string),
  cluster: nullable(string),
  rank: nullable(number),
  /** 100 is one core. */
  cpu_percent: known(number),
  memory_bytes: known(number),
  gpus: list(record({ index: number, memory_used_bytes: known(number) }))
});

const fields = {
  /** Unix time in seconds. */
  time: number,
  cpu: record({ percent: known(number) }),
  memory: record({ used_bytes: known(number), total_bytes: known(number) }),
  gpus: list(gpu),
  nics: list(nic),
  processes: knownIfSent(list(process))
};

/** A sample forwarded by a kernel, without its own version. */
export const readSample = record(fields);

/** A sample as the server sends it. */
export const readServerSample = versioned(SAMPLE_VERSION, fields);

export type ISample = Infer<typeof readSample>;
export type IGpuSample = Infer<typeof gpu>;
export type INicSample = Infer<typeof nic>;
export type IProcess = Infer<typeof process>;
