import React from 'react';

import { IFigure } from '../common/format';
import { Known } from '../common/known';
import { Sparkline } from '../common/sparkline';
import { Figure } from '../common/value';

/** One CPU, memory, GPU or NIC: its name, its last minute, its figures now. */
export function Device(props: Device.IProps): JSX.Element {
  return (
    <div className="jp-gw-Device" role="group" aria-label={props.name}>
      <div className="jp-gw-Device-head">
        <span className="jp-gw-Device-name">{props.name}</span>
        <span className="jp-gw-Device-detail" title={props.detail}>
          {props.detail}
        </span>
        <span className="jp-gw-Device-size">{props.size}</span>
      </div>
      <div
        className="jp-gw-Device-spark"
        style={{ gridRow: `2 / span ${props.figures.length}` }}
      >
        <Sparkline series={props.series} top={props.top} />
      </div>
      {props.figures.map(({ label, value }, index) => (
        <Figure key={index} label={label} value={value} />
      ))}
    </div>
  );
}

export namespace Device {
  export interface IProps {
    name: string;
    /** What it is, cut off where there is no room. */
    detail?: string;
    /** How much of it there is; never cut off. */
    size: React.ReactNode;
    series: readonly (readonly (number | null)[])[];
    /** The value at the sparkline's upper edge. */
    top: number;
    figures: readonly { label?: string; value: Known<IFigure> }[];
  }
}
