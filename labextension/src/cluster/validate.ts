import { Known } from '../common/known';
import {
  boolean,
  dictionary,
  known,
  list,
  nullable,
  number,
  oneOf,
  orWhyNot,
  record,
  Reader,
  string
} from '../common/validate';
import { IFinding, ISample } from '../resources/interfaces';
import { readFindings, readSnapshot } from '../resources/validate';
import { readSample } from '../resources/validatesample';
import { ICluster, IRank, IVm, KernelMessage } from './interfaces';

const name: Reader<string | number> = (value, where) =>
  typeof value === 'number' ? value : string(value, where);

const rank = record<IRank>({
  rank: number,
  vm: known(string),
  pid: known(number),
  gpu: known(name),
  nic: known(string),
  state: string
});

const cluster = record<ICluster>({
  name: string,
  state: oneOf('starting', 'ready', 'running', 'stopping', 'stopped', 'failed'),
  n: number,
  message: string,
  ranks: list(rank)
});

// A VM that says what cannot be read costs its own card only.
const vm = record<IVm>({
  name: string,
  local: boolean,
  snapshot: orWhyNot(readSnapshot),
  findings: readFindings
});

const kind = record<{ type: KernelMessage['type'] }>({
  type: oneOf('state', 'vms', 'samples', 'error')
});
const state = record<{ cluster: ICluster | null }>({
  cluster: nullable(cluster)
});
const vms = record<{ vms: IVm[]; findings: IFinding[] }>({
  vms: list(vm),
  findings: readFindings
});
const samples = record<{ samples: Record<string, Known<ISample>> }>({
  samples: dictionary(orWhyNot(readSample))
});
const failure = record<{ message: string }>({ message: string });

/** Throws an error that names the field and what was found in it. */
export function validateMessage(data: unknown): KernelMessage {
  const { type } = kind(data, 'message');
  switch (type) {
    case 'state':
      return { type, ...state(data, 'message') };
    case 'vms':
      return { type, ...vms(data, 'message') };
    case 'samples':
      return { type, ...samples(data, 'message') };
    case 'error':
      return { type, ...failure(data, 'message') };
  }
}
