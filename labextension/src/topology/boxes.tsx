import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { isUnknown } from '../schema/known';
import { IDevice, IGraph } from './graph';
import { IBox, ILayout } from './layout';
import { highlight, Lit } from './paths';
import { boxName, branchName, branchTitle, shortDetail } from './words';

/** Bars of CPUs, host bridges, switches and boards, and of the fabric. */
export const Branches = React.memo(
  (props: {
    graph: IGraph;
    layout: ILayout;
    lit: Lit | null;
    trans: TranslationBundle;
  }): JSX.Element => {
    const { graph, layout, lit, trans } = props;
    const { fabric } = graph;
    const name = fabric?.switches ? trans.__('NVSwitch') : trans.__('NVLink');
    return (
      <div aria-hidden="true">
        {layout.branches.map(({ branch, box }) => (
          <Bar
            key={branch.id}
            kind={branch.kind}
            box={box}
            rows={layout.rows}
            mod={highlight(lit, branch.id)}
            name={branchName(branch, trans)}
            title={branchTitle(branch, graph, trans)}
          />
        ))}
        {layout.fabric && (
          <Bar
            kind="fabric"
            box={layout.fabric}
            rows={layout.rows}
            mod={highlight(lit, 'fabric')}
            name={
              fabric?.trouble ? trans.__('%1: %2', name, fabric.trouble) : name
            }
            title={trans.__('NVLink connects each pair of these GPUs')}
          />
        )}
        {layout.pairs.map(({ id, box, links }) => (
          <Bar
            key={id}
            kind="links"
            box={box}
            rows={layout.rows}
            mod={highlight(lit, id)}
            name={isUnknown(links) ? 'NV' : `NV${links}`}
            title={isUnknown(links) ? links.unknown : ''}
          />
        ))}
      </div>
    );
  }
);

function Bar(props: {
  kind: string;
  box: IBox;
  rows: boolean;
  mod: string;
  name: string;
  title: string;
}): JSX.Element {
  const { kind, box, rows, mod, name, title } = props;
  const along = rows ? box.height : box.width;
  return (
    <div
      className={`jp-gw-Bar jp-gw-mod-${kind} ${rows ? 'jp-gw-mod-upright' : ''} ${mod}`}
      style={Private.style(box)}
      title={title}
    >
      {Private.fits(name, along) && <span>{name}</span>}
    </div>
  );
}

interface IDeviceProps {
  device: IDevice;
  box: IBox;
  /** Label for screen readers. */
  label: string;
  /** Why there is no GPU. */
  why: string;
  ranks: readonly number[];
  mod: string;
  pressed: boolean;
  inTabOrder: boolean;
  onPoint: (id: string | null) => void;
  onPointRank: (rank: number | null) => void;
  onFocus: (id: string | null) => void;
  onSelect: (id: string) => void;
  trans: TranslationBundle;
}

/** One device: a button whose label has the complete description. */
export const Device = React.memo((props: IDeviceProps): JSX.Element => {
  const { device, ranks, trans } = props;
  const detail = shortDetail(device, props.why, trans);
  const down = device.nic?.state === 'down' ? 'jp-gw-mod-down' : '';
  return (
    <button
      type="button"
      data-id={device.id}
      className={`jp-gw-Node jp-gw-mod-${device.kind} ${down} ${props.mod}`}
      style={Private.style(props.box)}
      aria-label={props.label}
      aria-pressed={props.pressed}
      tabIndex={props.inTabOrder ? 0 : -1}
      onMouseEnter={() => props.onPoint(device.id)}
      onMouseLeave={() => props.onPoint(null)}
      onFocus={() => props.onFocus(device.id)}
      onBlur={() => props.onFocus(null)}
      onClick={() => props.onSelect(device.id)}
    >
      <span className="jp-gw-Node-name">{boxName(device, trans)}</span>
      <span
        className={`jp-gw-Node-detail ${detail.includes(' ') ? '' : 'jp-gw-mod-word'}`}
      >
        {detail}
      </span>
      {ranks.length > 0 && (
        <span className="jp-gw-Node-ranks">
          {ranks.map(rank => (
            <Badge key={rank} rank={rank} onPoint={props.onPointRank} />
          ))}
        </span>
      )}
    </button>
  );
});

/** `r3`; its path is highlighted under the pointer. */
export function Badge(props: {
  rank: number;
  onPoint: (rank: number | null) => void;
}): JSX.Element {
  const { rank, onPoint } = props;
  return (
    <span
      className="jp-gw-Rank"
      onMouseEnter={() => onPoint(rank)}
      onMouseLeave={() => onPoint(null)}
    >
      {`r${rank}`}
    </span>
  );
}

namespace Private {
  export function style(box: IBox): React.CSSProperties {
    return { left: box.x, top: box.y, width: box.width, height: box.height };
  }

  /** A bar that is too short for its name shows none; its title has it. */
  export function fits(name: string, along: number): boolean {
    return name !== '' && along >= name.length * 5 + 6;
  }
}
