/* eslint-disable @typescript-eslint/no-explicit-any -- fakes are parts of what they stand for */
/**
 * Messages as a kernel sends them, made small.
 */

import {
  COLUMNS,
  ICollective,
  IDetails,
  MIME_TYPE
} from '../../src/live/protocol';

const UNKNOWN = { unknown: 'nothing was timed yet' };

export const SUMMARY = {
  iteration: 9,
  iterations_per_s: 41.2,
  iteration_us: 24300,
  exposed_us: 6100,
  exposed_share: 0.25,
  waiting_us: 1100,
  queued_us: 2000,
  transfer_us: 3000,
  busbw_gbps: 8.7,
  nominal_gbps: UNKNOWN,
  calibrated_gbps: UNKNOWN,
  slowest_rank: 1,
  slowest_excess_us: 4100,
  dropped: 0
};

/** What the kernel says of a selection; two collectives, one late rank. */
export function details(first: number, last: number): IDetails {
  const collective = (
    name: string,
    bytes: number,
    share: number
  ): ICollective => ({
    name,
    kind: 'allreduce',
    process_set: 0,
    by: 'optimizer',
    bytes,
    mean_us: bytes / 1000,
    busbw_gbps: 8,
    exposed_share: share
  });
  return {
    first_iteration: first,
    last_iteration: last,
    summary: { ...SUMMARY, iteration: last },
    collectives: [
      collective('head.weight', 2_000_000, 0.5),
      collective('body.weight', 4_000_000, 0.25)
    ],
    names: 2,
    collectives_since: first,
    stragglers: [
      {
        rank: 1,
        phase: 'data',
        excess_us: 4100,
        late_us: 2500,
        first_iteration: first,
        last_iteration: last
      }
    ]
  };
}

/** One row; figures not given are what `defaults` says. */
export function row(
  iteration: number,
  rank: number,
  given: Partial<Record<(typeof COLUMNS)[number], number>> = {}
): number[] {
  const defaults: Record<string, number> = {
    iteration_us: 20000,
    data_us: 500,
    copy_us: 0,
    forward_us: 4000,
    backward_us: 8000,
    exposed_us: 6000,
    optimizer_us: 1000,
    other_us: 500,
    communication_us: 9000,
    overlapped_us: 3000,
    wait_us: rank * 100,
    queued_us: 1000,
    transfer_us: 5000 - rank * 100,
    algbw_gbps: 5,
    busbw_gbps: 5,
    end_s: iteration * 0.02,
    left_out: 0
  };
  const all: Record<string, number> = {
    ...defaults,
    ...given,
    iteration,
    rank
  };
  return COLUMNS.map(name => all[name]);
}

/** Rows of iterations `from` to `to` (exclusive) on ranks 0 and 1. */
export function rows(from: number, to: number): number[][] {
  const all: number[][] = [];
  for (let iteration = from; iteration < to; iteration++) {
    all.push(row(iteration, 0), row(iteration, 1));
  }
  return all;
}

/** Column-major float32. */
export function pack(all: number[][]): ArrayBuffer {
  const data = new Float32Array(all.length * COLUMNS.length);
  all.forEach((values, i) => {
    values.forEach((value, column) => {
      data[column * all.length + i] = value;
    });
  });
  return data.buffer as ArrayBuffer;
}

export function message(
  type: string,
  seq: number,
  all: number[][],
  more: Record<string, unknown> = {}
): [Record<string, unknown>, DataView[]] {
  const content: Record<string, unknown> = {
    type,
    seq,
    run: 0,
    state: 'running',
    message: 'running on 2 ranks',
    ranks: [
      { rank: 0, vm: 'vm1' },
      { rank: 1, vm: 'vm2' }
    ],
    summary: SUMMARY,
    columns: [...COLUMNS],
    rows: all.length,
    ...(type === 'window' ? { details: details(0, all.length / 2 - 1) } : {}),
    ...more
  };
  if (type === 'state') {
    delete content.columns;
  }
  return [content, type === 'state' ? [] : [new DataView(pack(all))]];
}

/** A snapshot as it lies in a notebook's output. */
export function snapshot(
  seq: number,
  all: number[][],
  more: Record<string, unknown> = {}
): Record<string, unknown> {
  const [content] = message('window', seq, all, more);
  const bytes = new Uint8Array(pack(all));
  const data = btoa(String.fromCharCode(...bytes));
  return {
    ...content,
    version: 2,
    view_id: 'abc',
    window: { columns: [...COLUMNS], rows: all.length, data }
  };
}

export function bundle(payload: Record<string, unknown>): Record<string, any> {
  return { [MIME_TYPE]: payload, 'text/plain': 'Timings' };
}
