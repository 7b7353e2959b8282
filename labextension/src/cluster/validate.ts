import {
  known,
  list,
  nullable,
  number,
  oneOf,
  record,
  Reader,
  string
} from '../common/validate';
import { ICluster, IRank, KernelMessage } from './interfaces';

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

const kind = record<{ type: 'state' | 'error' }>({
  type: oneOf('state', 'error')
});
const state = record<{ cluster: ICluster | null }>({
  cluster: nullable(cluster)
});
const failure = record<{ message: string }>({ message: string });

/** Throws an error that names the field and what was found in it. */
export function validateMessage(data: unknown): KernelMessage {
  const { type } = kind(data, 'message');
  return type === 'state'
    ? { type, ...state(data, 'message') }
    : { type, ...failure(data, 'message') };
}
