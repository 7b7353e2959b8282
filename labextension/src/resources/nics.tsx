import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import {
  compact,
  countFigure,
  linkRate,
  rateFigure,
  RateUnit
} from '../common/format';
import { More, useSome } from '../common/some';
import { topOf } from '../common/sparkline';
import { Text } from '../common/value';
import { isUninspected, isUnknown, Known, mapKnown } from '../schema/known';
import { INicSample } from '../schema/sample';
import { INic, ISnapshot } from '../schema/snapshot';
import { isPartial, nicDetail, shownNics } from './describe';
import { Device } from './device';
import { Missing, notSampledYet, PlacesOnly } from './devices';
import { Machine } from './machine';
import { Mark, Row } from './rows';
import { Section } from './section';
import { useOpening, useShared } from './shared';

/** Minimum scale of a link, so that idle traffic is drawn as idle: 1 Mbit/s. */
const QUIET_BYTES_PER_S = 125e3;

/** NICs listed at a time: the largest boards have about 20. */
const MAX_SHOWN = 24;
/** Most names in one line. */
const MAX_NAMES = 8;

interface IProps {
  machine: Machine;
  snapshot: ISnapshot;
}

export function Nics({ machine, snapshot }: IProps): JSX.Element | null {
  const { nics, probes } = snapshot;
  const { preferences, trans } = useShared();
  const unclear = probes.nics.status === 'unknown';
  const [all, setAll] = useOpening(`${machine.key}/network/all`, false);
  const shown = shownNics(nics);
  const virtual = nics.filter(nic => nic.kind === 'virtual');
  const drawn = preferences.virtualInterfaces ? [...shown, ...virtual] : shown;
  const described = isPartial(snapshot) ? drawn.filter(isDescribed) : drawn;
  const some = useSome(described, MAX_SHOWN);
  if (drawn.length > 0 && described.length === 0) {
    return null; // the drawing shows everything known
  }
  return (
    <Section
      machine={machine}
      name="network"
      title={trans.__('Network')}
      detail={String(drawn.length)}
      more={
        machine.kind === 'file' || drawn.length === 0
          ? undefined
          : { label: trans.__('packets'), shown: all, show: setAll }
      }
    >
      {shown.length === 0 && (
        <Missing
          what={unclear ? trans.__('NICs unknown') : trans.__('No NIC')}
          probe={probes.nics}
        />
      )}
      {some.shown.map((nic, place) => (
        <Nic key={place} nic={nic} machine={machine} all={all} />
      ))}
      <More some={some} what={trans.__('NICs')} trans={trans} />
      <PlacesOnly count={drawn.length - described.length} />
      {!unclear && !shown.some(mayHaveRdma) && (
        <p className="jp-gw-Note">
          {trans.__('No RDMA device: collectives between VMs travel over TCP.')}
        </p>
      )}
      {virtual.length > 0 && !preferences.virtualInterfaces && (
        <Virtual names={virtual.map(nic => nic.name)} />
      )}
    </Section>
  );
}

function Virtual({ names }: { names: readonly string[] }): JSX.Element {
  const { trans } = useShared();
  const some = names.slice(0, MAX_NAMES).join(', ');
  const listed = names.length > MAX_NAMES ? `${some}, …` : some;
  return (
    <p className="jp-gw-Note jp-gw-mod-cut" title={listed}>
      {trans._n(
        '%1 virtual interface: %2',
        '%1 virtual interfaces: %2',
        names.length,
        listed
      )}
    </p>
  );
}

/** Whether the list would show more than its address; a topology file may have no name. */
function isDescribed(nic: INic): boolean {
  const named = !/^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$/.test(
    nic.name
  );
  return named || !isUnknown(nic.rate_gbps) || !isUnknown(nic.rdma_device);
}

function Nic(props: {
  nic: INic;
  machine: Machine;
  all: boolean;
}): JSX.Element {
  const { all, machine, nic } = props;
  const { preferences, trans } = useShared();
  const now = machine.nicSample(nic.name);
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
      lanes={
        machine.kind === 'file'
          ? []
          : lanes(machine, nic, now, preferences.rates, trans)
      }
    >
      {now && all && <Packets nic={nic} now={now} />}
      {now && <Marks nic={nic} now={now} />}
    </Device>
  );
}

function lanes(
  machine: Machine,
  nic: INic,
  now: INicSample | null,
  unit: RateUnit,
  trans: TranslationBundle
): Device.ILane[] {
  const waiting = notSampledYet(trans);
  const lane = (
    names: readonly string[],
    figures: readonly [string, Known<number> | undefined][]
  ): Device.ILane => {
    const series = names.map(name =>
      machine.history(`nic/${nic.name}/${name}`)
    );
    return {
      series,
      top: topOf(series, QUIET_BYTES_PER_S),
      figures: figures.map(([label, value]) => ({
        label,
        value: mapKnown(value ?? waiting, rate => rateFigure(rate, unit))
      }))
    };
  };
  const plain = lane(
    ['tx', 'rx'],
    [
      [trans.__('tx'), now?.tx_bytes_per_s],
      [trans.__('rx'), now?.rx_bytes_per_s]
    ]
  );
  if (nic.kind !== 'rdma') {
    return [plain];
  }
  // RDMA bypasses the interface, whose counters do not include it.
  const rdma = lane(
    ['rdma_tx', 'rdma_rx'],
    [
      [trans.__('RDMA tx'), now?.rdma_tx_bytes_per_s],
      [trans.__('RDMA rx'), now?.rdma_rx_bytes_per_s]
    ]
  );
  return [rdma, plain];
}

function Packets(props: { nic: INic; now: INicSample }): JSX.Element {
  const { nic, now } = props;
  const { trans } = useShared();
  const row = (
    label: string,
    tx: Known<number>,
    rx: Known<number>
  ): JSX.Element => (
    <Row
      label={label}
      values={[
        { label: trans.__('tx'), value: mapKnown(tx, perSecond) },
        { label: trans.__('rx'), value: mapKnown(rx, perSecond) }
      ]}
    />
  );
  return (
    <div className="jp-gw-Rows">
      {nic.kind === 'rdma' &&
        row(
          trans.__('RDMA packets'),
          now.rdma_tx_packets_per_s,
          now.rdma_rx_packets_per_s
        )}
      {row(trans.__('packets'), now.tx_packets_per_s, now.rx_packets_per_s)}
    </div>
  );
}

function perSecond(count: number): string {
  const { number, unit } = countFigure(count);
  return `${number} ${unit}`;
}

/** Congestion and errors, if any; a missing counter of an RDMA port is a dash. */
function Marks(props: { nic: INic; now: INicSample }): JSX.Element {
  const { nic, now } = props;
  const { trans } = useShared();
  const congestion: [string, Known<number>][] = [
    [trans.__('congestion notices sent'), now.cnp_sent_per_s],
    [trans.__('congestion notices handled'), now.cnp_handled_per_s],
    [trans.__('packets marked (ECN)'), now.ecn_marked_per_s]
  ];
  const unknown = congestion.every(([, value]) => isUnknown(value));
  return (
    <>
      {nic.kind === 'rdma' && unknown && (
        <div className="jp-gw-Rows">
          <Row
            label={trans.__('congestion')}
            values={[{ value: now.cnp_sent_per_s as Known<string> }]}
          />
        </div>
      )}
      {congestion.map(([what, value]) => (
        <EventsMark key={what} severity="info" what={what} value={value} />
      ))}
      {isUnknown(now.errors)
        ? nic.kind === 'rdma' && (
            <div className="jp-gw-Rows">
              <Row
                label={trans.__('errors')}
                values={[{ value: now.errors }]}
              />
            </div>
          )
        : Object.entries(now.errors).map(([name, value]) => (
            <EventsMark
              key={name}
              severity="warning"
              what={name}
              value={value}
            />
          ))}
    </>
  );
}

/** Nothing if the counter is constant or unknown. */
function EventsMark(props: {
  severity: 'warning' | 'info';
  what: string;
  value: Known<number>;
}): JSX.Element | null {
  const { severity, value, what } = props;
  const { trans } = useShared();
  return isUnknown(value) || value === 0 ? null : (
    <Mark severity={severity}>
      {trans.__('%1: %2 per second', what, compact(value))}
    </Mark>
  );
}

/** Whether a NIC may have RDMA: a topology file does not list every NIC's type. */
function mayHaveRdma(nic: INic): boolean {
  return nic.kind === 'rdma' || isUninspected(nic.rdma_device, nic.state);
}
