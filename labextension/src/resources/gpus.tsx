import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import {
  IFigure,
  memoryFigure,
  percentFigure,
  powerFigure,
  rateTogether,
  roundGib,
  temperatureFigure
} from '../common/format';
import { More, useSome } from '../common/some';
import { Text } from '../common/value';
import { IRank } from '../schema/cluster';
import { isUnknown, Known, mapKnown, orElse } from '../schema/known';
import { IGpuSample } from '../schema/sample';
import { IGpu, ISnapshot } from '../schema/snapshot';
import { duration, gpuDetail, isPartial, profileLine } from './describe';
import { Device } from './device';
import { Missing, notSampledYet, PlacesOnly } from './devices';
import { Machine } from './machine';
import { ranksOnGpu } from './ranks';
import { Mark, Row } from './rows';
import { Section } from './section';
import { useOpening, useShared } from './shared';

/** Up to this number, GPUs show all figures by default. */
const FEW = 2;

/** GPUs listed at a time: the largest boards have 16. */
const MAX_SHOWN = 16;

/** Idle time in seconds that is worth a mark. */
const LONG_IDLE_S = 60;

interface IProps {
  machine: Machine;
  snapshot: ISnapshot;
  ranks: readonly IRank[];
}

export function Gpus({ machine, ranks, snapshot }: IProps): JSX.Element | null {
  const { gpus, probes } = snapshot;
  const { trans } = useShared();
  const [all, setAll] = useOpening(
    `${machine.key}/gpus/all`,
    gpus.length <= FEW
  );
  const described = isPartial(snapshot) ? gpus.filter(isDescribed) : gpus;
  const some = useSome(described, MAX_SHOWN);
  if (gpus.length === 0) {
    const what =
      probes.gpus.status === 'unknown'
        ? trans.__('GPUs unknown')
        : trans.__('No GPU');
    return <Missing what={what} probe={probes.gpus} />;
  }
  if (described.length === 0) {
    return null; // the drawing shows everything known
  }
  return (
    <Section
      machine={machine}
      name="gpus"
      title={trans.__('GPUs')}
      detail={String(gpus.length)}
      more={
        machine.kind === 'file'
          ? undefined
          : { label: trans.__('all figures'), shown: all, show: setAll }
      }
    >
      {some.shown.map((gpu, place) => (
        <Gpu
          key={place}
          name={nameOf(gpu, gpus, trans)}
          gpu={gpu}
          machine={machine}
          ranks={ranksOnGpu(gpu, gpus, ranks)}
          all={all}
        />
      ))}
      <More some={some} what={trans.__('GPUs')} trans={trans} />
      <PlacesOnly count={gpus.length - described.length} />
    </Section>
  );
}

/** Whether the list would show more than its address. */
function isDescribed(gpu: IGpu): boolean {
  return [
    gpu.name,
    gpu.memory_bytes,
    gpu.form,
    gpu.vgpu_profile,
    gpu.licence
  ].some(one => !isUnknown(one));
}

function Gpu(props: {
  name: string;
  gpu: IGpu;
  machine: Machine;
  ranks: readonly IRank[];
  all: boolean;
}): JSX.Element {
  const { all, gpu, machine, name, ranks } = props;
  const { trans } = useShared();
  const live = machine.kind !== 'file';
  const now = machine.gpuSample(gpu);
  return (
    <Device
      name={name}
      tags={ranks.map(one => trans.__('rank %1', one.rank))}
      detail={gpuDetail(gpu, trans)}
      size={<Text value={mapKnown(gpu.memory_bytes, roundGib)} />}
      lanes={live ? [lane(gpu, now, machine, trans)] : []}
      further={live ? further(now, trans) : undefined}
    >
      {!isUnknown(gpu.vgpu) && (
        <p className="jp-gw-Note" title={orElse(gpu.vgpu_profile, '')}>
          {profileLine(gpu.vgpu, trans)}
        </p>
      )}
      {live && all && <Links gpu={gpu} now={now} />}
      <Marks gpu={gpu} now={now} />
    </Device>
  );
}

function lane(
  gpu: IGpu,
  now: IGpuSample | null,
  machine: Machine,
  trans: TranslationBundle
): Device.ILane {
  const waiting = notSampledYet(trans);
  const busy = now?.utilization_percent ?? waiting;
  const used = now?.memory_used_bytes ?? waiting;
  return {
    series: [machine.gpuHistory(gpu)],
    top: 100,
    figures: [
      { label: trans.__('busy'), value: mapKnown(busy, percentFigure) },
      { label: trans.__('memory'), value: mapKnown(used, memoryFigure) }
    ]
  };
}

function further(
  now: IGpuSample | null,
  trans: TranslationBundle
): Device.IFigureNow[] {
  const waiting = notSampledYet(trans);
  return [
    {
      label: trans.__('power'),
      value: now ? powerOf(now, trans) : waiting
    },
    {
      label: trans.__('temp'),
      value: mapKnown(now?.temperature_c ?? waiting, temperatureFigure)
    }
  ];
}

function powerOf(now: IGpuSample, trans: TranslationBundle): Known<IFigure> {
  return mapKnown(now.power_w, watts => {
    const figure = powerFigure(watts);
    return isUnknown(now.power_limit_w)
      ? figure
      : {
          ...figure,
          unit: trans.__('of %1 W', now.power_limit_w.toFixed(0))
        };
  });
}

/** Clocks, and the traffic of the GPU's links. */
function Links(props: {
  gpu: IGpu;
  now: IGpuSample | null;
}): JSX.Element | null {
  const { gpu, now } = props;
  const { trans } = useShared();
  if (!now) {
    return null;
  }
  const top = mapKnown(gpu.clocks, clocks => clocks.sm_max_mhz);
  const hasNvlink =
    !isUnknown(now.nvlink_tx_bytes_per_s) ||
    !isUnknown(mapKnown(gpu.nvlink, links => links.nominal_gb_per_s));
  return (
    <div className="jp-gw-Rows">
      <Row
        label={trans.__('SM clock')}
        values={[{ value: mapKnown(now.sm_clock_mhz, mhz => mhz.toFixed(0)) }]}
        unit={
          isUnknown(top)
            ? trans.__('MHz')
            : trans.__('of %1 MHz', top.toFixed(0))
        }
      />
      {isUnknown(now.held_by) && (
        <Row
          label={trans.__('clocks reduced by')}
          values={[{ value: now.held_by }]}
        />
      )}
      {hasNvlink && (
        <RatesRow
          label={trans.__('NVLink')}
          tx={now.nvlink_tx_bytes_per_s}
          rx={now.nvlink_rx_bytes_per_s}
        />
      )}
      <RatesRow
        label={trans.__('PCIe')}
        tx={now.pcie_tx_bytes_per_s}
        rx={now.pcie_rx_bytes_per_s}
      />
    </div>
  );
}

function RatesRow(props: {
  label: string;
  tx: Known<number>;
  rx: Known<number>;
}): JSX.Element {
  const { preferences, trans } = useShared();
  const { numbers, unit } = rateTogether(
    [props.tx, props.rx],
    preferences.rates
  );
  return (
    <Row
      label={props.label}
      values={[
        { label: trans.__('tx'), value: numbers[0] },
        { label: trans.__('rx'), value: numbers[1] }
      ]}
      unit={unit}
    />
  );
}

/** Marks: licence, limited clocks, idle memory. */
function Marks(props: { gpu: IGpu; now: IGpuSample | null }): JSX.Element {
  const { gpu, now } = props;
  const { trans } = useShared();
  const licence = mapKnown(gpu.licence, one => one.state);
  // An idle GPU lowers its clocks: that needs no attention.
  const held = orElse(now?.held_by ?? [], []).filter(one => one !== 'idle');
  const idle = orElse(now?.idle_s ?? 0, 0);
  return (
    <>
      {licence === 'unlicensed' && (
        <Mark severity="warning">{trans.__('without a licence')}</Mark>
      )}
      {held.length > 0 && (
        <Mark severity="warning">
          {trans.__('clocks reduced by: %1', held.join(', '))}
        </Mark>
      )}
      {idle >= LONG_IDLE_S && (
        <Mark severity="info">
          {trans.__('idle for %1 with memory allocated', duration(idle, trans))}
        </Mark>
      )}
    </>
  );
}

/** MIG devices have the number of their GPU, so they are counted separately. */
function nameOf(
  gpu: IGpu,
  gpus: readonly IGpu[],
  trans: TranslationBundle
): string {
  const parts = gpus.filter(
    one => one.index === gpu.index && one.form === 'mig'
  );
  return parts.includes(gpu)
    ? trans.__('GPU %1, MIG %2', gpu.index, parts.indexOf(gpu))
    : trans.__('GPU %1', gpu.index);
}
