/**
 * The messages between a kernel and a live view: one snapshot when the view is
 * first shown, then messages. The Python side is
 * `workbench/widgets/messages.py`.
 */

import { IRunFile } from '../common/runfile';
import { ENGLISH, ITranslate } from '../common/translate';
import { IUnknown, Known } from '../schema/known';
import { IVerdict } from './causes';

/** The MIME type of a live view's snapshot in a notebook's output. */
export const MIME_TYPE = 'application/vnd.gradient-workbench.timings+json';

/** The comm target; a view's comm has the id `timings-<view_id>`. */
export const COMM_TARGET = 'workbench.timings';

/** The version of snapshots and messages that this code reads. */
export const VERSION = 2;

/**
 * The columns that a view draws, all float32; times in microseconds. `left_out` is
 * a `LeftOut`. `logged_0` and `logged_1` are logged by the cell, and infinite where
 * they are not finite.
 */
export const COLUMNS = [
  'iteration',
  'rank',
  'iteration_us',
  'data_us',
  'copy_us',
  'forward_us',
  'backward_us',
  'exposed_us',
  'optimizer_us',
  'other_us',
  'communication_us',
  'overlapped_us',
  'wait_us',
  'queued_us',
  'transfer_us',
  'algbw_gbps',
  'busbw_gbps',
  'end_s',
  'left_out',
  'samples_per_s',
  'logged_0',
  'logged_1'
] as const;

export type Column = (typeof COLUMNS)[number];

/** Why means leave an iteration out, unless there are no others. */
export enum LeftOut {
  No = 0,
  /** The first of its cell, a warm-up. */
  First = 1,
  Profiled = 2
}

/** The columns with a figure, as opposed to the row's iteration and rank. */
export type Figure = Exclude<Column, 'iteration' | 'rank'>;

export const FIGURES = COLUMNS.filter(
  (name): name is Figure => name !== 'iteration' && name !== 'rank'
);

export type RunState = 'waiting' | 'running' | 'ended';

export interface IRankPlace {
  rank: number;
  vm: string;
}

/** The key figures of a run: means over its newest iterations and the ranks. */
export interface ISummary {
  iteration: Known<number>;
  /** The range of the means; absent in outputs of earlier versions. */
  first_iteration?: Known<number>;
  last_iteration?: Known<number>;
  iterations_per_s: Known<number>;
  iteration_us: Known<number>;
  exposed_us: Known<number>;
  exposed_share: Known<number>;
  /** The parts of the exposed time; absent in outputs of earlier versions. */
  waiting_us?: Known<number>;
  queued_us?: Known<number>;
  transfer_us?: Known<number>;
  busbw_gbps: Known<number>;
  nominal_gbps: Known<number>;
  calibrated_gbps: Known<number>;
  /** Its relative error; absent in outputs of earlier versions. */
  calibrated_error?: Known<number>;
  slowest_rank: Known<number>;
  slowest_excess_us: Known<number>;
  dropped: Known<number>;
  /** Caveats of the figures, one sentence each. */
  notes?: string[];
  /** What carries the collectives; absent in outputs of earlier versions. */
  transport?: Known<string>;
  /** Samples per second, passes over the data, costs so far; absent as above. */
  progress?: Known<string>;
}

/** The cost of one collective, over some iterations and all ranks. */
export interface ICollective {
  name: string;
  kind: string;
  process_set: number;
  by: string;
  bytes: number;
  /** From submitted to finished: the mean over iterations and ranks. */
  mean_us: number;
  /** Until all ranks had submitted it. */
  queued_us: Known<number>;
  transfer_us: Known<number>;
  busbw_gbps: Known<number>;
  exposed_share: number;
  /** Its group of ranks; empty for all, absent in outputs of earlier versions. */
  group?: string;
  /** The rank to which it is sent, or from which it is received; -1 for none. */
  peer?: number;
}

/** A stage of a pipeline: means over the iterations. */
export interface IStage {
  group: string;
  stage: number;
  rank: number;
  idle_us: number;
  idle_share: number;
  /** The share of idle time if all stages were equally fast. */
  ideal_share: Known<number>;
}

/**
 * A rank that the others waited for; `phase` is where it differs from them. The
 * rank is -1 if all wait for a link, the phase 'unknown' if no phase differs.
 * `excess_us` is the additional time of the phase or the link; the others wait
 * `late_us` because of it.
 */
export interface IStraggler {
  rank: number;
  phase: string;
  excess_us: number;
  late_us: number;
  first_iteration: number;
  last_iteration: number;
}

/** The kernel's details of a selection of iterations. */
export interface IDetails {
  first_iteration: number;
  last_iteration: number;
  summary: ISummary;
  collectives: ICollective[] | IUnknown;
  /** Number of collectives; the most expensive ones are sent. */
  names: number;
  /** The first iteration for which single collectives are still stored. */
  collectives_since: number;
  stragglers: IStraggler[];
  /** Of pipelines, or why they are unknown; absent in outputs of earlier versions. */
  stages?: IStage[] | IUnknown;
}

/** A page's request to the kernel. */
export type Request =
  | { type: 'details'; first: number; last: number }
  | { type: 'rows'; before: number }
  | { type: 'explain' }
  | { type: 'runs' }
  | { type: 'earlier'; name: string }
  | { type: 'profile'; seconds: number };

/** The iteration times of a stored run. */
export interface IEarlierRun {
  name: string;
  iterations: number;
  /** Number of successive iterations of which each time is the mean. */
  each: number;
  times_us: (number | null)[];
  mean_us: number;
}

/** The state of the run in every snapshot and message. */
export interface IStatus {
  run: number;
  seq: number;
  state: RunState;
  message: string;
  ranks: IRankPlace[];
  summary: ISummary;
  /** Of the newest cell, after its end; absent in outputs of earlier versions. */
  verdict?: IVerdict | null;
  /** A line about the latest profile of the ranks; absent as above. */
  profile?: string;
  /** The trace of that profile, if the server sends it; absent as above. */
  profile_file?: IRunFile | null;
  /** The names of what the cell logs; absent in outputs of earlier versions. */
  logged?: string[];
}

/** Rows of a run: one float32 array per column that the kernel sent. */
export interface IRows {
  rows: number;
  columns: Map<string, Float32Array>;
}

export interface ISnapshot extends IStatus {
  viewId: string;
  details: IDetails;
  window: IRows;
}

/** One message of the stream; `state` messages carry no rows. */
export interface IUpdate extends IStatus {
  type: 'delta' | 'window' | 'state';
  window: IRows | null;
  /** With a window only. */
  details: IDetails | null;
}

/** The answer to a request: details of a selection, older rows, causes, or a refusal. */
export interface IAnswer {
  type: 'answer';
  run: number;
  asked: Request;
  details: IDetails | null;
  window: IRows | null;
  explanation: IVerdict | IUnknown | null;
  /** Why the ranks cannot be profiled; empty if they are. */
  refusal: string;
  /** The names of stored runs, the newest first. */
  runs: string[] | null;
  earlier: IEarlierRun | IUnknown | null;
}

/** The output as the kernel would save it. */
export interface ISaved {
  type: 'saved';
  data: Record<string, unknown>;
}

/** The number, or NaN if it is unknown. */
export function numberOf(value: Known<number>): number {
  return typeof value === 'number' ? value : NaN;
}

/**
 * Split column-major float32 bytes into one array per column.
 *
 * @throws if the bytes do not match the names and the number of rows.
 */
export function readRows(
  names: readonly string[],
  rows: number,
  bytes: ArrayBuffer,
  trans: ITranslate = ENGLISH
): IRows {
  const expected = names.length * rows * 4;
  if (bytes.byteLength !== expected) {
    throw new Error(
      trans.__(
        'Timings: %1 columns of %2 rows need %3 bytes, but %4 arrived. Reload the page.',
        names.length,
        rows,
        expected,
        bytes.byteLength
      )
    );
  }
  const columns = new Map<string, Float32Array>();
  names.forEach((name, index) => {
    const known = name === 'first' ? 'left_out' : name; // in outputs of earlier versions
    columns.set(known, new Float32Array(bytes, index * rows * 4, rows));
  });
  return { rows, columns };
}

/** Copy bytes to a buffer aligned for float32. */
export function toArrayBuffer(
  buffer: ArrayBuffer | ArrayBufferView
): ArrayBuffer {
  if (buffer instanceof ArrayBuffer) {
    return buffer;
  }
  const { byteOffset, byteLength } = buffer;
  const view = new Uint8Array(buffer.buffer, byteOffset, byteLength);
  return view.slice().buffer as ArrayBuffer;
}

/** A snapshot as the kernel writes it; only the version is checked. */
interface IRawSnapshot extends IStatus {
  version: number;
  view_id: string;
  details: IDetails;
  window: { columns: string[]; rows: number; data: string };
}

/** As the kernel writes a message: the fields that its type has. */
interface IRawMessage extends IStatus {
  type: string;
  asked: Request;
  details?: IDetails;
  explanation?: IVerdict | IUnknown | null;
  refusal?: string;
  runs?: string[];
  earlier?: IEarlierRun | IUnknown;
  columns?: string[];
  rows: number;
  data: Record<string, unknown>;
}

/** Read the snapshot in an output's MIME bundle or a widget's trait. */
export function readSnapshot(
  payload: unknown,
  trans: ITranslate = ENGLISH
): ISnapshot {
  const raw = payload as IRawSnapshot | null;
  if (raw === null || raw.version !== VERSION) {
    throw new Error(
      trans.__(
        'Timings of version %1: this view reads version %2. Install the same version of gradient-workbench for the kernel and the server.',
        String(raw?.version),
        VERSION
      )
    );
  }
  const { columns, rows, data } = raw.window;
  return {
    ...readStatus(raw),
    viewId: raw.view_id,
    details: raw.details,
    window: readRows(columns, rows, decodeBase64(data), trans)
  };
}

/** Read one message of the stream; return null for an unknown type. */
export function readMessage(
  content: unknown,
  buffers: readonly (ArrayBuffer | ArrayBufferView)[],
  trans: ITranslate = ENGLISH
): IUpdate | ISaved | IAnswer | null {
  const raw = content as IRawMessage | null;
  const rows = (): IRows | null =>
    raw?.columns
      ? readRows(raw.columns, raw.rows, toArrayBuffer(buffers[0]), trans)
      : null;
  switch (raw?.type) {
    case 'saved':
      return { type: 'saved', data: raw.data };
    case 'answer': {
      const { run, asked, details = null, explanation = null } = raw;
      const { refusal = '', runs = null, earlier = null } = raw;
      return {
        type: 'answer',
        run,
        asked,
        details,
        window: rows(),
        explanation,
        refusal,
        runs,
        earlier
      };
    }
    case 'state':
    case 'delta':
    case 'window': {
      const { type, details = null } = raw;
      return { ...readStatus(raw), type, details, window: rows() };
    }
    default:
      return null;
  }
}

function readStatus(raw: IStatus): IStatus {
  const { run, seq, state, message, ranks, summary, verdict } = raw;
  const { profile, logged, profile_file } = raw;
  return {
    ...{ run, seq, state, message, ranks, summary, verdict },
    ...{ profile, logged, profile_file }
  };
}

function decodeBase64(text: string): ArrayBuffer {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes.buffer as ArrayBuffer;
}
