import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import {
  linkRate,
  memoryFigure,
  percentFigure,
  powerFigure,
  rateFigure,
  roundGib,
  temperatureFigure
} from '../common/format';
import { isUnknown, IUnknown, Known, mapKnown, orElse } from '../common/known';
import { topOf } from '../common/sparkline';
import { Text } from '../common/value';
import { gpuDetail, nicDetail, shownNics } from './describe';
import { Device } from './device';
import { IGpu, INic, IProbe } from './interfaces';
import { ResourcesModel } from './model';

/** Up to this the scale of a link stays as it is, so that idle chatter looks idle: 1 Mbit/s. */
const QUIET_BYTES_PER_S = 125e3;

interface IProps {
  model: ResourcesModel;
  trans: TranslationBundle;
}

export function CpuAndMemory({ model, trans }: IProps): JSX.Element {
  const host = model.snapshot?.host;
  const waiting = notSampledYet(trans);
  const cpu = model.sample?.cpu.percent ?? waiting;
  const used = model.sample?.memory.used_bytes ?? waiting;
  const total =
    model.sample?.memory.total_bytes ?? host?.memory_bytes ?? waiting;
  return (
    <>
      <Device
        name={trans.__('CPU')}
        size={
          host && (
            <CpuSize usable={host.cpus} all={host.cpus_total} trans={trans} />
          )
        }
        lanes={[
          {
            series: [model.history('cpu')],
            top: 100,
            figures: [{ value: mapKnown(cpu, percentFigure) }]
          }
        ]}
      />
      <Device
        name={trans.__('Memory')}
        size={
          isUnknown(total) ? (
            <Text value={total} />
          ) : (
            trans.__('of %1', roundGib(total))
          )
        }
        lanes={[
          {
            series: [model.history('memory')],
            top: orElse(total, topOf([model.history('memory')], 1)),
            figures: [{ value: mapKnown(used, memoryFigure) }]
          }
        ]}
      />
    </>
  );
}

export function Gpus({ model, trans }: IProps): JSX.Element {
  const { gpus, probes } = model.snapshot!;
  if (gpus.length === 0) {
    return <Missing what={trans.__('No GPU')} probe={probes.gpus} />;
  }
  return (
    <>
      {gpus.map(gpu => (
        <Gpu key={gpu.index} gpu={gpu} model={model} trans={trans} />
      ))}
    </>
  );
}

export function Nics({ model, trans }: IProps): JSX.Element {
  const { nics, probes } = model.snapshot!;
  const shown = shownNics(nics);
  const virtual = nics
    .filter(nic => nic.kind === 'virtual')
    .map(nic => nic.name);
  return (
    <>
      {shown.length === 0 && (
        <Missing what={trans.__('No NIC')} probe={probes.nics} />
      )}
      {shown.map(nic => (
        <Nic key={nic.name} nic={nic} model={model} trans={trans} />
      ))}
      {!shown.some(nic => nic.kind === 'rdma') && (
        <p className="jp-gw-Note">
          {trans.__('No RDMA device: collectives between VMs travel over TCP.')}
        </p>
      )}
      {virtual.length > 0 && (
        <p className="jp-gw-Note jp-gw-mod-cut" title={virtual.join(', ')}>
          {trans._n(
            '%1 virtual interface: ',
            '%1 virtual interfaces: ',
            virtual.length
          )}
          {virtual.join(', ')}
        </p>
      )}
    </>
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

function Gpu({ gpu, model, trans }: IProps & { gpu: IGpu }): JSX.Element {
  const waiting = notSampledYet(trans);
  const now = model.gpuSample(gpu.index);
  const busy = now?.utilization_percent ?? waiting;
  const used = now?.memory_used_bytes ?? waiting;
  return (
    <Device
      name={trans.__('GPU %1', gpu.index)}
      detail={gpuDetail(gpu, trans)}
      size={<Text value={mapKnown(gpu.memory_bytes, roundGib)} />}
      lanes={[
        {
          series: [model.history(`gpu/${gpu.index}`)],
          top: 100,
          figures: [
            { label: trans.__('busy'), value: mapKnown(busy, percentFigure) },
            { label: trans.__('memory'), value: mapKnown(used, memoryFigure) }
          ]
        }
      ]}
      further={[
        {
          label: trans.__('power'),
          value: mapKnown(now?.power_w ?? waiting, powerFigure)
        },
        {
          label: trans.__('temp'),
          value: mapKnown(now?.temperature_c ?? waiting, temperatureFigure)
        }
      ]}
    />
  );
}

function Nic({ nic, model, trans }: IProps & { nic: INic }): JSX.Element {
  const waiting = notSampledYet(trans);
  const now = model.nicSample(nic.name);
  const rate = (
    label: string,
    value: Known<number> = waiting
  ): Device.IFigureNow => ({ label, value: mapKnown(value, rateFigure) });
  const plain = nicLane(
    model,
    nic,
    ['tx', 'rx'],
    [
      rate(trans.__('tx'), now?.tx_bytes_per_s),
      rate(trans.__('rx'), now?.rx_bytes_per_s)
    ]
  );
  // RDMA goes past the interface, whose own counters do not see it.
  const rdma = nicLane(
    model,
    nic,
    ['rdma_tx', 'rdma_rx'],
    [
      rate(trans.__('RDMA tx'), now?.rdma_tx_bytes_per_s),
      rate(trans.__('RDMA rx'), now?.rdma_rx_bytes_per_s)
    ]
  );
  return (
    <Device
      name={nic.name}
      detail={nicDetail(nic, trans)}
      size={
        <>
          {isUnknown(nic.rate_gbps) && trans.__('rate')}{' '}
          <Text value={mapKnown(nic.rate_gbps, linkRate)} />
        </>
      }
      lanes={nic.kind === 'rdma' ? [rdma, plain] : [plain]}
    />
  );
}

function nicLane(
  model: ResourcesModel,
  nic: INic,
  names: string[],
  figures: Device.IFigureNow[]
): Device.ILane {
  const series = names.map(name => model.history(`nic/${nic.name}/${name}`));
  return { series, top: topOf(series, QUIET_BYTES_PER_S), figures };
}

/** Stands for each figure until the live feed has sent one. */
function notSampledYet(trans: TranslationBundle): IUnknown {
  return { unknown: trans.__('waiting for the first sample') };
}

/** That a kind of device is not there, and why. */
function Missing(props: { what: string; probe: IProbe }): JSX.Element {
  const { what, probe } = props;
  return (
    <p
      className={`jp-gw-Note ${probe.status === 'failed' ? 'jp-gw-mod-error' : ''}`}
    >
      {probe.reason ? `${what}: ${probe.reason}.` : `${what}.`}
    </p>
  );
}
