import { PathExt } from '@jupyterlab/coreutils';
import { TranslationBundle } from '@jupyterlab/translation';
import React, { useId } from 'react';

import { memoryFigure, percentFigure } from '../common/format';
import { More, useSome } from '../common/some';
import { Text } from '../common/value';
import { isUnknown, Known, mapKnown, orElse } from '../schema/known';
import { IProcess } from '../schema/sample';
import { Machine } from './machine';
import { Section } from './section';
import { useOpening, useShared } from './shared';

/** So many are listed at once. */
const MOST = 32;

/** A kernel that uses less of a core is idle, in percent. */
const IDLE_BELOW = 5;

/** Kernels, ranks and whatever else uses a GPU, with what each holds of it. */
export function Processes({ machine }: { machine: Machine }): JSX.Element {
  const { trans } = useShared();
  const processes = machine.sample?.processes ?? {
    unknown: trans.__('waiting for the first sample')
  };
  const known = isUnknown(processes) ? [] : processes;
  const quiet = known.filter(isIdleKernel);
  const idle = quiet.length > 1 ? quiet : [];
  const others = known.filter(one => !idle.includes(one));
  const some = useSome(others, MOST);
  return (
    <Section
      machine={machine}
      name="processes"
      title={trans.__('Processes')}
      detail={isUnknown(processes) ? '–' : String(processes.length)}
    >
      {isUnknown(processes) && (
        <p className="jp-gw-Note">
          {trans.__('Not known: %1.', processes.unknown)}
        </p>
      )}
      {!isUnknown(processes) && processes.length === 0 && (
        <p className="jp-gw-Note">
          {trans.__('No kernel, no rank, and nothing that uses a GPU.')}
        </p>
      )}
      {known.length > 0 && (
        <table
          className="jp-gw-Table"
          aria-label={trans.__('Processes and what they use')}
        >
          <TableHead />
          <tbody>
            {some.shown.map(one => (
              <ProcessRow key={one.pid} process={one} />
            ))}
          </tbody>
          {idle.length > 0 && <IdleKernels machine={machine} kernels={idle} />}
        </table>
      )}
      <More some={some} what={trans.__('processes')} trans={trans} />
    </Section>
  );
}

function TableHead(): JSX.Element {
  const { trans } = useShared();
  return (
    <thead>
      <tr>
        <th>{trans.__('process')}</th>
        <th>{trans.__('GPU')}</th>
        <th className="jp-gw-mod-number">{trans.__('its GiB')}</th>
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
}): JSX.Element {
  const { kernels, machine } = props;
  const { trans } = useShared();
  const [open, setOpen] = useOpening(`${machine.key}/processes/idle`, false);
  const some = useSome(kernels, MOST);
  const id = useId();
  return (
    <>
      <tbody>
        <tr>
          <td className="jp-gw-Table-name" colSpan={3}>
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
          <td className="jp-gw-mod-number">
            <Text value={gib(sumOf(kernels.map(one => one.memory_bytes)))} />
          </td>
          <td className="jp-gw-mod-number">
            <Text value={percent(sumOf(kernels.map(one => one.cpu_percent)))} />
          </td>
        </tr>
      </tbody>
      <tbody id={id} className="jp-gw-Group" hidden={!open}>
        {open &&
          some.shown.map(one => (
            <ProcessRow key={one.pid} process={one} isMember />
          ))}
        {open && some.step > 0 && (
          <tr>
            <td colSpan={5}>
              <More some={some} what={trans.__('kernels')} trans={trans} />
            </td>
          </tr>
        )}
      </tbody>
    </>
  );
}

/** Whether it is a kernel without a name of its own that does nothing. */
function isIdleKernel(one: IProcess): boolean {
  return (
    one.kind === 'kernel' &&
    one.rank === null &&
    one.notebook === null &&
    one.gpus.length === 0 &&
    orElse(one.cpu_percent, 0) < IDLE_BELOW
  );
}

/** Not known where one of them is not. */
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
  /** Of the idle kernels, which use no GPU: their names have its columns. */
  isMember?: boolean;
}): JSX.Element {
  const { isMember = false, process } = props;
  const { trans } = useShared();
  return (
    <tr>
      <td
        className="jp-gw-Table-name"
        colSpan={isMember ? 3 : 1}
        title={fullName(process, trans)}
      >
        {shortName(process, trans)}
      </td>
      {!isMember && (
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
      <td className="jp-gw-mod-number">
        <Text value={gib(process.memory_bytes)} />
      </td>
      <td className="jp-gw-mod-number">
        <Text value={percent(process.cpu_percent)} />
      </td>
    </tr>
  );
}

function gib(bytes: Known<number>): Known<string> {
  return mapKnown(bytes, value => memoryFigure(value).number);
}

/** What a person knows it by: its rank, its notebook, else its name. */
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
