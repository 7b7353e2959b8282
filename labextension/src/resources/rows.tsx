/** Lines below a device: further figures and warnings. */
import React from 'react';

import { Text } from '../common/value';
import { Known } from '../schema/known';
import { SeverityIcon } from './findings';

/** A name and its values, as text or figures. */
export function Row(props: {
  label: string;
  values: readonly Row.IValue[];
  /** Tooltip of all values. */
  unit?: string;
}): JSX.Element {
  return (
    <div className="jp-gw-Row">
      <span className="jp-gw-Row-label">{props.label}</span>
      {props.values.map((value, index) => (
        <span key={index} className="jp-gw-Row-value">
          {value.label && (
            <span className="jp-gw-Figure-label">{value.label}</span>
          )}
          <span className="jp-gw-Row-number">
            <Text value={value.value} />
          </span>
        </span>
      ))}
      <span className="jp-gw-Figure-unit">{props.unit}</span>
    </div>
  );
}

export namespace Row {
  export interface IValue {
    label?: string;
    value: Known<string>;
  }
}

/** A mark that attracts attention: an icon and text. */
export function Mark(props: {
  severity: 'warning' | 'info';
  children: React.ReactNode;
}): JSX.Element {
  return (
    <p className={`jp-gw-Mark jp-gw-mod-${props.severity}`}>
      <SeverityIcon severity={props.severity} />
      <span>{props.children}</span>
    </p>
  );
}
