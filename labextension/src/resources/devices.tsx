import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { memoryFigure, percentFigure, roundGib } from '../common/format';
import { topOf } from '../common/sparkline';
import { Text } from '../common/value';
import { isUnknown, IUnknown, Known, mapKnown, orElse } from '../schema/known';
import { IHost, IProbe } from '../schema/snapshot';
import { Device } from './device';
import { Machine } from './machine';
import { useShared } from './shared';

interface IProps {
  machine: Machine;
  host: IHost;
}

/** The devices of every machine; for a file, as far as described. */
export function CpuAndMemory(props: IProps): JSX.Element {
  return (
    <>
      <Cpu {...props} />
      <Memory {...props} />
    </>
  );
}

function Cpu({ host, machine }: IProps): JSX.Element {
  const { trans } = useShared();
  const now = machine.sample?.cpu.percent ?? notSampledYet(trans);
  const lane = {
    series: [machine.history('cpu')],
    top: 100,
    figures: [{ value: mapKnown(now, percentFigure) }]
  };
  return (
    <Device
      name={trans.__('CPU')}
      size={<CpuSize usable={host.cpus} all={host.cpus_total} trans={trans} />}
      lanes={machine.kind === 'file' ? [] : [lane]}
    />
  );
}

function Memory({ host, machine }: IProps): JSX.Element {
  const { trans } = useShared();
  const { sample } = machine;
  const used = sample?.memory.used_bytes ?? notSampledYet(trans);
  const total = sample?.memory.total_bytes ?? host.memory_bytes;
  const series = [machine.history('memory')];
  const lane = {
    series,
    top: orElse(total, topOf(series, 1)),
    figures: [{ value: mapKnown(used, memoryFigure) }]
  };
  return (
    <Device
      name={trans.__('Memory')}
      size={
        isUnknown(total) ? (
          <Text value={total} />
        ) : (
          trans.__('of %1', roundGib(total))
        )
      }
      lanes={machine.kind === 'file' ? [] : [lane]}
    />
  );
}

function CpuSize(props: {
  usable: Known<number>;
  all: Known<number>;
  trans: TranslationBundle;
}): JSX.Element {
  const { usable, all, trans } = props;
  if (isUnknown(usable)) {
    return <Text value={usable} />;
  }
  return isUnknown(all) || all === usable ? (
    <>{trans._n('%1 core', '%1 cores', usable)}</>
  ) : (
    <>{trans.__('%1 of %2 cores usable', usable, all)}</>
  );
}

/** Shown instead of each figure until the first sample arrives. */
export function notSampledYet(trans: TranslationBundle): IUnknown {
  return { unknown: trans.__('waiting for the first sample') };
}

/** Shows that a kind of device is missing, and why. */
export function Missing(props: { what: string; probe: IProbe }): JSX.Element {
  const { what, probe } = props;
  const { trans } = useShared();
  return (
    <p
      className={`jp-gw-Note ${probe.status === 'failed' ? 'jp-gw-mod-error' : ''}`}
    >
      {probe.reason
        ? trans.__('%1: %2.', what, probe.reason)
        : trans.__('%1.', what)}
    </p>
  );
}

/** The number of devices for which a topology file only has the address. */
export function PlacesOnly({ count }: { count: number }): JSX.Element | null {
  const { trans } = useShared();
  return count === 0 ? null : (
    <p className="jp-gw-Note">
      {trans.__('For %1 more, the file only has the address.', count)}
    </p>
  );
}
