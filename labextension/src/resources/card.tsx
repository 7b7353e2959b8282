import { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import React, { memo, useEffect, useMemo, useRef } from 'react';

import { percentFigure } from '../common/format';
import { Sparkline } from '../common/sparkline';
import { Dash } from '../common/value';
import { IHop, IRank } from '../schema/cluster';
import { isUnknown, Known } from '../schema/known';
import { findUnreadable } from '../schema/reader';
import { ISnapshot } from '../schema/snapshot';
import { realNics } from '../topology/read';
import { Topology } from '../topology/topology';
import { Weakest } from '../topology/weakest';
import { isPartial, machineLine, oneLine } from './describe';
import { CpuAndMemory } from './devices';
import { Findings, Trouble, Verdict } from './findings';
import { Gpus } from './gpus';
import { Machine, meanGpuUse } from './machine';
import { Nics } from './nics';
import { Processes } from './processes';
import { Ranks } from './ranks';
import { Section } from './section';
import { useMachine, useSeen, useShared } from './shared';

/** One machine: a line while closed, all details while open. */
export const Card = memo((props: Card.IProps): JSX.Element => {
  const { machine, onClose, onOpen, open, ranks, weakest } = props;
  const { trans } = useShared();
  const summary = useGreeting(machine);
  const item = useRef<HTMLLIElement>(null);
  useMachine(machine, useSeen(item));
  const old = machine.trouble ? 'jp-gw-mod-stale' : '';
  return (
    <li ref={item} className={`jp-gw-Cards-item jp-gw-mod-${machine.kind}`}>
      <details
        className={`jp-gw-Card ${old}`}
        open={open}
        onToggle={event => {
          // Toggle events of elements inside the card also arrive here.
          const { currentTarget, target } = event;
          if (target === currentTarget && currentTarget.open !== open) {
            onOpen(machine, currentTarget.open);
          }
        }}
      >
        <summary ref={summary}>
          <Head machine={machine} open={open} />
        </summary>
        {open && <Body machine={machine} ranks={ranks} weakest={weakest} />}
      </details>
      {onClose && (
        <button
          type="button"
          className="jp-gw-Close"
          title={trans.__('Close %1', machine.name)}
          aria-label={trans.__('Close %1', machine.name)}
          onClick={() => onClose(machine)}
        >
          <closeIcon.react tag="span" aria-hidden="true" />
        </button>
      )}
    </li>
  );
}, sameCard);

export namespace Card {
  export interface IProps {
    machine: Machine;
    open: boolean;
    /** The cluster's ranks on it. */
    ranks: readonly IRank[];
    /** The weakest hop of the ring, if it has that; or why it is unknown. */
    weakest: Known<IHop | null>;
    onOpen: (machine: Machine, open: boolean) => void;
    /** Absent if it cannot be closed. */
    onClose?: (machine: Machine) => void;
  }
}

/** The head of an open or closed card: the name, one line, and the findings. */
function Head(props: { machine: Machine; open: boolean }): JSX.Element {
  const { machine, open } = props;
  const { trans } = useShared();
  const { findings, kind, snapshot, trouble } = machine;
  return (
    <>
      <h4 className="jp-gw-Card-name">{nameOf(machine, trans)}</h4>
      <Line machine={machine} open={open} />
      {!open && kind !== 'file' && <Use machine={machine} />}
      {trouble && kind === 'vm' ? (
        <Trouble words={trouble} />
      ) : (
        snapshot &&
        !isUnknown(snapshot) && (
          <Verdict
            findings={findings}
            partly={isPartial(snapshot)}
            trans={trans}
          />
        )
      )}
    </>
  );
}

function sameCard(one: Card.IProps, other: Card.IProps): boolean {
  return (
    one.machine === other.machine &&
    one.open === other.open &&
    one.onOpen === other.onOpen &&
    one.onClose === other.onClose &&
    one.weakest === other.weakest &&
    one.ranks.length === other.ranks.length &&
    one.ranks.every((rank, index) => rank === other.ranks[index])
  );
}

/** The line of a card: a summary if closed, or what is shown nowhere else if open. */
function Line(props: { machine: Machine; open: boolean }): JSX.Element {
  const { machine, open } = props;
  const { trans } = useShared();
  const { snapshot, trouble } = machine;
  const words =
    trouble && machine.kind === 'vm'
      ? trouble
      : snapshot === null
        ? trans.__('no data yet')
        : isUnknown(snapshot)
          ? snapshot.unknown
          : (open ? machineLine : oneLine)(snapshot, trans);
  return (
    <span className="jp-gw-Card-line" title={words}>
      {words}
    </span>
  );
}

/** Its current use: the mean of its GPUs, or its CPUs if it has none. */
function Use({ machine }: { machine: Machine }): JSX.Element {
  const { preferences, trans } = useShared();
  const { sample } = machine;
  const gpus = sample && meanGpuUse(sample);
  const now = machine.trouble
    ? { unknown: machine.trouble }
    : (gpus ??
      sample?.cpu.percent ?? {
        unknown: trans.__('waiting for the first sample')
      });
  const what = gpus === null ? trans.__('CPUs') : trans.__('GPUs on average');
  return (
    <span className="jp-gw-Use" title={what}>
      <span className="jp-gw-Use-spark">
        <Sparkline
          series={[machine.history(gpus === null ? 'cpu' : 'gpus')]}
          top={100}
          length={preferences.historySeconds}
        />
      </span>
      <span className="jp-gw-Hidden">{what}</span>
      <span className="jp-gw-Use-number">
        {isUnknown(now) ? (
          <Dash unknown={now} />
        ) : (
          trans.__('%1 %', percentFigure(now).number)
        )}
      </span>
    </span>
  );
}

function Body(
  props: Pick<Card.IProps, 'machine' | 'ranks' | 'weakest'>
): JSX.Element {
  const { machine, ranks, weakest } = props;
  const { trans } = useShared();
  const { snapshot, trouble } = machine;
  return (
    <div className="jp-gw-Card-body">
      {trouble && machine.kind === 'vm' && (
        <p className="jp-gw-Note jp-gw-mod-error">
          {trans.__('Figures are out of date: %1.', trouble)}
        </p>
      )}
      {snapshot && isUnknown(snapshot) && (
        <p className="jp-gw-Note">
          {trans.__('Hardware unknown: %1.', snapshot.unknown)}
        </p>
      )}
      {snapshot && !isUnknown(snapshot) && (
        <Contents
          machine={machine}
          snapshot={snapshot}
          ranks={ranks}
          weakest={weakest}
        />
      )}
      {(!snapshot || isUnknown(snapshot)) && (
        <Ranks machine={machine} ranks={ranks} />
      )}
    </div>
  );
}

function Contents(props: {
  machine: Machine;
  snapshot: ISnapshot;
  ranks: readonly IRank[];
  weakest: Known<IHop | null>;
}): JSX.Element {
  const { machine, ranks, snapshot, weakest } = props;
  const { trans } = useShared();
  const unreadable = useMemo(() => findUnreadable(snapshot), [snapshot]);
  return (
    <>
      {!isPartial(snapshot) && (
        <CpuAndMemory machine={machine} host={snapshot.host} />
      )}
      {isWorthDrawing(machine, snapshot, weakest) ? (
        <Section machine={machine} name="topology" title={trans.__('Topology')}>
          {unreadable === null ? (
            <Topology
              snapshot={snapshot}
              sample={machine.sample}
              ranks={ranks}
              weakest={weakest}
              trans={trans}
            />
          ) : (
            <p className="jp-gw-Note">
              {trans.__('Cannot be drawn: %1.', unreadable)}
            </p>
          )}
        </Section>
      ) : (
        <Weakest hop={weakest} isDrawn={null} trans={trans} />
      )}
      <Gpus machine={machine} snapshot={snapshot} ranks={ranks} />
      <Nics machine={machine} snapshot={snapshot} />
      <Ranks machine={machine} ranks={ranks} />
      {machine.kind !== 'file' && <Processes machine={machine} />}
      <Findings
        findings={machine.findings}
        label={trans.__('Findings')}
        trans={trans}
      />
    </>
  );
}

/** Whether there is a GPU, an RDMA port or the weakest hop; else the lists are shorter. */
function isWorthDrawing(
  machine: Machine,
  snapshot: ISnapshot,
  weakest: Known<IHop | null>
): boolean {
  const end = weakest === null || isUnknown(weakest) ? '' : weakest.end;
  return (
    machine.kind === 'file' ||
    snapshot.gpus.length > 0 ||
    snapshot.nics.some(nic => nic.kind === 'rdma') ||
    realNics(snapshot).some(nic => nic.name === end)
  );
}

/** A file's card gets the focus once and is scrolled to, as the user has just opened it. */
function useGreeting(machine: Machine): React.RefObject<HTMLElement> {
  const summary = useRef<HTMLElement>(null);
  useEffect(() => {
    if (machine.kind === 'file' && !greeted.has(machine)) {
      greeted.add(machine);
      summary.current?.focus();
    }
  }, [machine]);
  return summary;
}

const greeted = new WeakSet<Machine>();

function nameOf(machine: Machine, trans: TranslationBundle): string {
  if (machine.kind === 'file') {
    return trans.__('file: %1', machine.name);
  }
  return machine.name || trans.__('this machine');
}
