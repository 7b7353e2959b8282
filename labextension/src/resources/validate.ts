import {
  known,
  knownIfSent,
  list,
  number,
  oneOf,
  Reader,
  record,
  string
} from '../common/validate';
import {
  IFinding,
  IGpu,
  IGpuSample,
  IHost,
  INic,
  INicSample,
  IProbe,
  ISample,
  ISnapshot
} from './interfaces';

/** Versions of the messages that this page reads. */
export const SNAPSHOT_VERSION = 2;
export const SAMPLE_VERSION = 1;

const host = record<IHost>({
  hostname: known(string),
  hypervisor: known(string),
  cpus: known(number),
  cpus_total: known(number),
  memory_bytes: known(number),
  os: known(string),
  kernel: known(string)
});

const gpu = record<IGpu>({
  index: number,
  uuid: known(string),
  name: known(string),
  memory_bytes: known(number),
  form: known(string),
  vgpu_profile: known(string)
});

const nic = record<INic>({
  name: string,
  kind: oneOf('physical', 'virtual', 'rdma'),
  rdma_device: known(string),
  driver: known(string),
  link_layer: known(string),
  rate_gbps: known(number),
  state: known(string)
});

const probe = record<IProbe>({
  status: oneOf('ok', 'absent', 'failed'),
  reason: string
});

const snapshot = record<ISnapshot>({
  host,
  gpus: list(gpu),
  nics: list(nic),
  probes: record({ host: probe, gpus: probe, nics: probe })
});

const finding = record<IFinding>({
  rule: string,
  severity: oneOf('error', 'warning', 'info'),
  subject: string,
  evidence: string,
  why: string,
  cure: string,
  source: string
});

const gpuSample = record<IGpuSample>({
  index: number,
  utilization_percent: known(number),
  memory_used_bytes: known(number),
  memory_total_bytes: known(number),
  power_w: known(number),
  temperature_c: known(number)
});

const nicSample = record<INicSample>({
  name: string,
  tx_bytes_per_s: known(number),
  rx_bytes_per_s: known(number),
  rdma_tx_bytes_per_s: knownIfSent(number),
  rdma_rx_bytes_per_s: knownIfSent(number)
});

const sample = record<ISample>({
  time: number,
  cpu: record({ percent: known(number) }),
  memory: record({ used_bytes: known(number), total_bytes: known(number) }),
  gpus: list(gpuSample),
  nics: list(nicSample)
});

/** Throws an error that names the field and what was found in it. */
export function validateSnapshot(data: unknown): ISnapshot {
  Private.checkVersion(data, 'snapshot', SNAPSHOT_VERSION);
  return snapshot(data, 'snapshot');
}

export function validateFindings(data: unknown): IFinding[] {
  const readAll: Reader<{ findings: IFinding[] }> = record({
    findings: list(finding)
  });
  return readAll(data, 'answer').findings;
}

export function validateSample(data: unknown): ISample {
  Private.checkVersion(data, 'sample', SAMPLE_VERSION);
  return sample(data, 'sample');
}

namespace Private {
  export function checkVersion(
    data: unknown,
    where: string,
    expected: number
  ): void {
    const { version } = record<{ version: number }>({ version: number })(
      data,
      where
    );
    if (version !== expected) {
      throw new Error(
        `${where}: version ${version}, but this page reads version ${expected}; reload the page`
      );
    }
  }
}
