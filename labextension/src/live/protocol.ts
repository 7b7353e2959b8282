/**
 * What passes between a kernel and a live view: one snapshot when the view is
 * first seen, messages from then on. The Python side is
 * `workbench/widgets/messages.py`.
 */

import { IUnknown, Known } from '../schema/known';

/** The MIME type of a live view's snapshot in a notebook's output. */
export const MIME_TYPE = 'application/vnd.gradient-workbench.timings+json';

/** The comm target; a view's comm has the id `timings-<view_id>`. */
export const COMM_TARGET = 'workbench.timings';

/** The version of snapshots and messages that this code reads. */
export const VERSION = 2;

/**
 * The columns that a view draws, all float32; times in microseconds. `first` is 1
 * in the first iteration of a cell, which warms up: means leave it out.
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
  'algbw_gbps',
  'busbw_gbps',
  'end_s',
  'first'
] as const;

export type Column = (typeof COLUMNS)[number];

/** The columns that hold a figure rather than a row's address. */
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
  iterations_per_s: Known<number>;
  iteration_us: Known<number>;
  exposed_us: Known<number>;
  exposed_share: Known<number>;
  busbw_gbps: Known<number>;
  nominal_gbps: Known<number>;
  calibrated_gbps: Known<number>;
  /** How far that may be off, as a share; none in outputs of earlier versions. */
  calibrated_error?: Known<number>;
  slowest_rank: Known<number>;
  slowest_excess_us: Known<number>;
  dropped: Known<number>;
  /** What a reader must know of the figures, a sentence each. */
  notes?: string[];
}

/** What one collective cost, over some iterations and all ranks. */
export interface ICollective {
  name: string;
  kind: string;
  process_set: number;
  by: string;
  bytes: number;
  /** From submitted to finished: the mean over iterations and ranks. */
  mean_us: number;
  busbw_gbps: Known<number>;
  exposed_share: number;
}

/**
 * A rank that the others waited for; `phase` is where it differs from them. The
 * rank is -1 where all wait for a link, the phase 'unknown' where none explains it.
 * What the phase or the link takes longer is `excess_us`; for `late_us` of that
 * the others wait.
 */
export interface IStraggler {
  rank: number;
  phase: string;
  excess_us: number;
  late_us: number;
  first_iteration: number;
  last_iteration: number;
}

/** What the kernel says of a selection of iterations. */
export interface IDetails {
  first_iteration: number;
  last_iteration: number;
  summary: ISummary;
  collectives: ICollective[] | IUnknown;
  /** How many collectives there were; the worst of them are sent. */
  names: number;
  /** The first iteration that single collectives are still held of. */
  collectives_since: number;
  stragglers: IStraggler[];
}

/** What a page asks the kernel for. */
export type Request =
  | { type: 'details'; first: number; last: number }
  | { type: 'rows'; before: number };

/** What every snapshot and message says about the run. */
export interface IStatus {
  run: number;
  seq: number;
  state: RunState;
  message: string;
  ranks: IRankPlace[];
  summary: ISummary;
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

/** What a page requested: details of a selection, or older rows. */
export interface IAnswer {
  type: 'answer';
  run: number;
  asked: Request;
  details: IDetails | null;
  window: IRows | null;
}

/** The output as the kernel would save it; see `Saved` in the Python side. */
export interface ISaved {
  type: 'saved';
  data: Record<string, unknown>;
}

/** The number itself, or NaN where it is unknown. */
export function numberOf(value: Known<number>): number {
  return typeof value === 'number' ? value : NaN;
}

/**
 * Split column-major float32 bytes into one array per column.
 *
 * @throws where the bytes do not match the names and the number of rows.
 */
export function readRows(
  names: readonly string[],
  rows: number,
  bytes: ArrayBuffer
): IRows {
  const expected = names.length * rows * 4;
  if (bytes.byteLength !== expected) {
    throw new Error(
      `Timings: ${names.length} columns of ${rows} rows need ${expected} bytes, ` +
        `${bytes.byteLength} came. Reload the page.`
    );
  }
  const columns = new Map<string, Float32Array>();
  names.forEach((name, index) => {
    columns.set(name, new Float32Array(bytes, index * rows * 4, rows));
  });
  return { rows, columns };
}

/** Bytes of their own, aligned for float32, from whatever the transport gave. */
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

/** As the kernel writes a snapshot; the version is checked, the rest believed. */
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
  columns?: string[];
  rows: number;
  data: Record<string, unknown>;
}

/** Read the snapshot out of an output's MIME bundle or a widget's trait. */
export function readSnapshot(payload: unknown): ISnapshot {
  const raw = payload as IRawSnapshot | null;
  if (raw === null || raw.version !== VERSION) {
    throw new Error(
      `Timings of version ${raw?.version}: this view reads version ${VERSION}. ` +
        'Install the same gradient-workbench in the kernel and in the server.'
    );
  }
  const { columns, rows, data } = raw.window;
  return {
    ...readStatus(raw),
    viewId: raw.view_id,
    details: raw.details,
    window: readRows(columns, rows, decodeBase64(data))
  };
}

/** Read one message of the stream; null where it is of a kind not known here. */
export function readMessage(
  content: unknown,
  buffers: readonly (ArrayBuffer | ArrayBufferView)[]
): IUpdate | ISaved | IAnswer | null {
  const raw = content as IRawMessage | null;
  const rows = (): IRows | null =>
    raw?.columns
      ? readRows(raw.columns, raw.rows, toArrayBuffer(buffers[0]))
      : null;
  switch (raw?.type) {
    case 'saved':
      return { type: 'saved', data: raw.data };
    case 'answer': {
      const { run, asked, details = null } = raw;
      return { type: 'answer', run, asked, details, window: rows() };
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
  const { run, seq, state, message, ranks, summary } = raw;
  return { run, seq, state, message, ranks, summary };
}

function decodeBase64(text: string): ArrayBuffer {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes.buffer as ArrayBuffer;
}
