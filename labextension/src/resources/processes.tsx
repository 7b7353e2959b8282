import { PathExt } from '@jupyterlab/coreutils';
import { TranslationBundle } from '@jupyterlab/translation';
import React, { useId } from 'react';

import { memoryFigure, percentFigure } from '../common/format';
import { ISome, More, useSome } from '../common/some';
import { Text } from '../common/value';
import { isUnknown, Known, mapKnown, orElse } from '../schema/known';
import { IProcess } from '../schema/sample';
import { Machine } from './machine';
import { Section } from './section';
import { useOpening, useShared } from './shared';

/** Processes listed at a time. */
const MAX_SHOWN = 32;

/** A kernel that uses less than this percentage of a core is idle. */
const IDLE_BELOW = 5;

/** Kernels, ranks and other processes that use a GPU, and what each uses. */
export function Processes({ machine }: { machine: Machine }): JSX.Element {
  const { trans } = useShared();
  const processes = machine.sample?.processes ?? {
    unknown: trans.__('waiting for the first sample')
  };
  const known = isUnknown(processes) ? [] : processes;
  const quiet = known.filter(isIdleKernel);
  const idle = quiet.length > 1 ? quiet : [];
  const others = known.filter(one => !idle.includes(one));
  const some = useSome(others, MAX_SHOWN);
  const hasGpus = Private.hasGpus(machine, known);
  return (
    <Section
      machine={machine}
      name="processes"
      title={trans.__('Processes')}
      detail={isUnknown(processes) ? '–' : String(processes.length)}
    >
      {isUnknown(processes) && (
        <p className="jp-gw-Note">
          {trans.__('Unknown: %1.', processes.unknown)}
        </p>
      )}
      {!isUnknown(processes) && processes.length === 0 && (
        <p className="jp-gw-Note">
          {trans.__('No kernel, rank or other process that uses a GPU.')}
        </p>
      )}
      {known.length > 0 && (
        <table
          className="jp-gw-Table"
          aria-label={trans.__('Processes and what they use')}
        >
          <TableHead hasGpus={hasGpus} />
          <tbody>
            {some.shown.map(one => (
              <ProcessRow key={one.pid} process={one} hasGpus={hasGpus} />
            ))}
          </tbody>
          {idle.length > 0 && (
            <IdleKernels machine={machine} kernels={idle} hasGpus={hasGpus} />
          )}
        </table>
      )}
      <More some={some} what={trans.__('processes')} trans={trans} />
    </Section>
  );
}

function TableHead({ hasGpus }: { hasGpus: boolean }): JSX.Element {
  const { trans } = useShared();
  return (
    <thead>
      <tr>
        <th>{trans.__('Process')}</th>
        {hasGpus && (
          <>
            <th>{trans.__('GPU')}</th>
            <th className="jp-gw-mod-number">{trans.__('GPU GiB')}</th>
          </>
        )}
        <th className="jp-gw-mod-number">{trans.__('GiB')}</th>
        <th className="jp-gw-mod-number">{trans.__('CPU %')}</th>
      </tr>
    </thead>
  );
}

/** One row for all idle kernels, and a row for each on demand. */
function IdleKernels(props: {
  machine: Machine;
  kernels: readonly IProcess[];
  hasGpus: boolean;
}): JSX.Element {
  const { hasGpus, kernels, machine } = props;
  const { trans } = useShared();
  const [open, setOpen] = useOpening(`${machine.key}/processes/idle`, false);
  const some = useSome(kernels, MAX_SHOWN);
  const id = useId();
  return (
    <>
      <tbody>
        <tr>
          <td className="jp-gw-Table-name" colSpan={hasGpus ? 3 : 1}>
            <button
              type="button"
              className="jp-gw-Group-button"
              aria-expanded={open}
              aria-controls={id}
              onClick={() => setOpen(!open)}
            >
              {trans._n('%1 idle kernel', '%1 idle kernels', kernels.length)}
            </button>
          </td>
          <UseCells
            memory={sumOf(kernels.map(one => one.memory_bytes))}
            cpu={sumOf(kernels.map(one => one.cpu_percent))}
          />
        </tr>
      </tbody>
      <tbody id={id} className="jp-gw-Group" hidden={!open}>
        {open && <KernelRows some={some} hasGpus={hasGpus} />}
      </tbody>
    </>
  );
}

function KernelRows(props: {
  some: ISome<IProcess>;
  hasGpus: boolean;
}): JSX.Element {
  const { hasGpus, some } = props;
  const { trans } = useShared();
  return (
    <>
      {some.shown.map(one => (
        <ProcessRow key={one.pid} process={one} hasGpus={hasGpus} isMember />
      ))}
      {some.step > 0 && (
        <tr>
          <td colSpan={hasGpus ? 5 : 3}>
            <More some={some} what={trans.__('kernels')} trans={trans} />
          </td>
        </tr>
      )}
    </>
  );
}

namespace Private {
  /** Whether the machine has a GPU, or a process reports one. */
  export function hasGpus(
    machine: Machine,
    processes: readonly IProcess[]
  ): boolean {
    const { snapshot } = machine;
    const has = snapshot && !isUnknown(snapshot) && snapshot.gpus.length > 0;
    return Boolean(has) || processes.some(one => one.gpus.length > 0);
  }
}

/** Whether it is an idle kernel without its own name. */
function isIdleKernel(one: IProcess): boolean {
  return (
    one.kind === 'kernel' &&
    one.rank === null &&
    one.notebook === null &&
    one.gpus.length === 0 &&
    orElse(one.cpu_percent, 0) < IDLE_BELOW
  );
}

/** The sum; unknown if one value is. */
function sumOf(values: readonly Known<number>[]): Known<number> {
  return (
    values.find(isUnknown) ??
    (values as readonly number[]).reduce((sum, value) => sum + value, 0)
  );
}

function percent(value: Known<number>): Known<string> {
  return mapKnown(value, share => percentFigure(share).number);
}

function ProcessRow(props: {
  process: IProcess;
  hasGpus: boolean;
  /** One of the idle kernels, which use no GPU: the name spans the GPU columns. */
  isMember?: boolean;
}): JSX.Element {
  const { hasGpus, isMember = false, process } = props;
  const { trans } = useShared();
  return (
    <tr>
      <td
        className="jp-gw-Table-name"
        colSpan={isMember && hasGpus ? 3 : 1}
        title={fullName(process, trans)}
      >
        {shortName(process, trans)}
      </td>
      {!isMember && hasGpus && (
        <>
          <td>
            {process.gpus.map(gpu => (
              <div key={gpu.index}>{gpu.index}</div>
            ))}
          </td>
          <td className="jp-gw-mod-number">
            {process.gpus.map(gpu => (
              <div key={gpu.index}>
                <Text value={gib(gpu.memory_used_bytes)} />
              </div>
            ))}
          </td>
        </>
      )}
      <UseCells memory={process.memory_bytes} cpu={process.cpu_percent} />
    </tr>
  );
}

/** The last two cells of a row: memory and CPU. */
function UseCells(props: {
  memory: Known<number>;
  cpu: Known<number>;
}): JSX.Element {
  return (
    <>
      <td className="jp-gw-mod-number">
        <Text value={gib(props.memory)} />
      </td>
      <td className="jp-gw-mod-number">
        <Text value={percent(props.cpu)} />
      </td>
    </>
  );
}

function gib(bytes: Known<number>): Known<string> {
  return mapKnown(bytes, value => memoryFigure(value).number);
}

/** The name that users know: its rank, its notebook, or else its program. */
function shortName(process: IProcess, trans: TranslationBundle): string {
  if (process.rank !== null) {
    return trans.__('rank %1', process.rank);
  }
  if (process.notebook !== null) {
    return PathExt.basename(process.notebook);
  }
  return process.kind === 'kernel'
    ? trans.__('kernel %1', process.pid)
    : process.name;
}

function fullName(process: IProcess, trans: TranslationBundle): string {
  return [
    trans.__('%1, process %2', process.name, process.pid),
    process.notebook,
    process.cluster && trans.__('cluster %1', process.cluster)
  ]
    .filter(Boolean)
    .join(' · ');
}
