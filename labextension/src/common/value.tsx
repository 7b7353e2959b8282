import React from 'react';

import { isUnknown, IUnknown, Known } from '../schema/known';
import { IFigure } from './format';

/** A grey dash; its reason is shown on hover and on focus, and read aloud. */
export function Dash(props: { unknown: IUnknown }): JSX.Element {
  const reason = props.unknown.unknown;
  return (
    <span className="jp-gw-Dash" tabIndex={0} role="img" aria-label={reason}>
      –
      <span className="jp-gw-Dash-reason" aria-hidden="true">
        {reason}
      </span>
    </span>
  );
}

/** A number and its unit in separate columns, or a dash. */
export function Figure(props: Figure.IProps): JSX.Element {
  const { label, value } = props;
  const unknown = isUnknown(value);
  return (
    <span className="jp-gw-Figure">
      <span className="jp-gw-Figure-label">{label}</span>
      <span className="jp-gw-Figure-number">
        {unknown ? <Dash unknown={value} /> : value.number}
      </span>
      <span className="jp-gw-Figure-unit">{unknown ? '' : value.unit}</span>
    </span>
  );
}

export namespace Figure {
  export interface IProps {
    /** The name of the figure if its row does not have one, such as "tx". */
    label?: string;
    value: Known<IFigure>;
  }
}

/** A text, or a dash. */
export function Text(props: { value: Known<string | number> }): JSX.Element {
  return isUnknown(props.value) ? (
    <Dash unknown={props.value} />
  ) : (
    <>{props.value}</>
  );
}
