import {
  boolean,
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
  IClocks,
  IFinding,
  IGpu,
  IHost,
  ILicence,
  INic,
  INvLinks,
  IProbe,
  IReading,
  ISnapshot,
  IVgpuProfile
} from './interfaces';

/** The version that this page reads. */
export const SNAPSHOT_VERSION = 2;

const host = record<IHost>({
  hostname: known(string),
  hypervisor: known(string),
  cpus: known(number),
  cpus_total: known(number),
  memory_bytes: known(number),
  os: known(string),
  kernel: known(string)
});

const vgpu = record<IVgpuProfile>({
  board: string,
  slices: known(number),
  memory_gb: number,
  series: string,
  board_memory_gb: known(number),
  whole_frame_buffer: known(boolean),
  p2p: known(boolean),
  gpudirect: known(boolean)
});

const gpu = record<IGpu>({
  index: number,
  uuid: known(string),
  name: known(string),
  memory_bytes: known(number),
  form: known(string),
  vgpu_profile: known(string),
  vgpu: knownIfSent(vgpu),
  licence: knownIfSent(record<ILicence>({ state: known(string) })),
  clocks: knownIfSent(record<IClocks>({ sm_max_mhz: known(number) })),
  nvlink: knownIfSent(record<INvLinks>({ nominal_gb_per_s: known(number) }))
});

const nic = record<INic>({
  name: string,
  kind: oneOf('physical', 'virtual', 'rdma'),
  rdma_device: known(string),
  driver: known(string),
  link_layer: known(string),
  rate_gbps: known(number),
  state: known(string),
  numa_node: knownIfSent(number)
});

const probe = record<IProbe>({
  status: oneOf('ok', 'absent', 'failed', 'unknown'),
  reason: string
});

const snapshot = record<Omit<ISnapshot, 'raw'>>({
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

/** Reads a snapshot of this page's version. */
export const readSnapshot: Reader<ISnapshot> = (value, where) => {
  checkVersion(value, where, SNAPSHOT_VERSION);
  return { ...snapshot(value, where), raw: value };
};

export const readFindings = list(finding);

/** Throws an error that names the field and what was found in it. */
export function validateSnapshot(data: unknown): ISnapshot {
  return readSnapshot(data, 'snapshot');
}

export function validateFindings(data: unknown): IFinding[] {
  return record({ findings: readFindings })(data, 'answer').findings;
}

export function validateReading(data: unknown): IReading {
  return record<IReading>({
    name: string,
    snapshot: readSnapshot,
    findings: readFindings
  })(data, 'answer');
}

/** Throws where a message is not of the version that this page reads. */
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
