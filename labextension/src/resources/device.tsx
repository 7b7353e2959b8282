import React from 'react';

import { IFigure } from '../common/format';
import { Sparkline } from '../common/sparkline';
import { Figure } from '../common/value';
import { Known } from '../schema/known';
import { useShared } from './shared';

/** One CPU, memory, GPU or NIC: its name, its last minute, its current figures. */
export function Device(props: Device.IProps): JSX.Element {
  return (
    <div className="jp-gw-Device" role="group" aria-label={props.name}>
      <div className="jp-gw-Device-head">
        <span className="jp-gw-Device-name">{props.name}</span>
        {props.tags?.map(tag => (
          <span key={tag} className="jp-gw-Tag">
            {tag}
          </span>
        ))}
        <span className="jp-gw-Device-detail" title={props.detail}>
          {props.detail}
        </span>
        <span className="jp-gw-Device-size">{props.size}</span>
      </div>
      {props.lanes.map((lane, index) => (
        <Lane key={index} {...lane} />
      ))}
      {props.further && (
        <div className="jp-gw-Device-further">
          {props.further.map((figure, index) => (
            <Figure key={index} {...figure} />
          ))}
        </div>
      )}
      {props.children}
    </div>
  );
}

/** A sparkline and its figures. */
function Lane({ series, top, figures }: Device.ILane): JSX.Element {
  const { historySeconds } = useShared().preferences;
  return (
    <div className="jp-gw-Lane">
      <div
        className="jp-gw-Lane-spark"
        style={{ gridRow: `1 / span ${figures.length}` }}
      >
        <Sparkline series={series} top={top} length={historySeconds} />
      </div>
      {figures.map((figure, index) => (
        <Figure key={index} {...figure} />
      ))}
    </div>
  );
}

export namespace Device {
  export interface IFigureNow {
    label?: string;
    value: Known<IFigure>;
  }

  export interface ILane {
    series: readonly (readonly (number | null)[])[];
    /** The value at the sparkline's upper edge. */
    top: number;
    figures: readonly IFigureNow[];
  }

  export interface IProps {
    name: string;
    /** Short texts after the name, such as the ranks on it. */
    tags?: readonly string[];
    /** Its description, truncated if there is no space. */
    detail?: string;
    /** Its size; never truncated. */
    size: React.ReactNode;
    lanes: readonly ILane[];
    /** Figures without a history, in one line. */
    further?: readonly IFigureNow[];
    /** Rows and marks below it. */
    children?: React.ReactNode;
  }
}
