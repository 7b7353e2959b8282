import { PathExt } from '@jupyterlab/coreutils';
import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { memoryFigure, percentFigure } from '../common/format';
import { isUnknown, Known, mapKnown } from '../common/known';
import { Text } from '../common/value';
import { IProcess } from './interfaces';
import { Machine } from './machine';
import { Section } from './section';
import { useShared } from './shared';

/** Kernels, ranks and whatever else uses a GPU, with what each holds of it. */
export function Processes({ machine }: { machine: Machine }): JSX.Element {
  const { trans } = useShared();
  const processes = machine.sample?.processes ?? {
    unknown: trans.__('waiting for the first sample')
  };
  const known = isUnknown(processes) ? [] : processes;
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
          <thead>
            <tr>
              <th>{trans.__('process')}</th>
              <th>{trans.__('GPU')}</th>
              <th className="jp-gw-mod-number">{trans.__('its GiB')}</th>
              <th className="jp-gw-mod-number">{trans.__('GiB')}</th>
              <th className="jp-gw-mod-number">{trans.__('CPU %')}</th>
            </tr>
          </thead>
          <tbody>
            {known.map(one => (
              <ProcessRow key={one.pid} process={one} />
            ))}
          </tbody>
        </table>
      )}
    </Section>
  );
}

function ProcessRow({ process }: { process: IProcess }): JSX.Element {
  const { trans } = useShared();
  return (
    <tr>
      <td className="jp-gw-Table-name" title={fullName(process, trans)}>
        {shortName(process, trans)}
      </td>
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
      <td className="jp-gw-mod-number">
        <Text value={gib(process.memory_bytes)} />
      </td>
      <td className="jp-gw-mod-number">
        <Text
          value={mapKnown(
            process.cpu_percent,
            percent => percentFigure(percent).number
          )}
        />
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
