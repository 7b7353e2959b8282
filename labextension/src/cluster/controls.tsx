import { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, refreshIcon, stopIcon } from '@jupyterlab/ui-components';
import React, { useId, useState } from 'react';

import { ICluster } from '../schema/cluster';
import { isRanks } from './fields';
import { KernelLink } from './link';
import { lostRanks } from './states';

/** What can be done with a cluster that runs. */
export function Controls(props: Controls.IProps): JSX.Element {
  const { cluster, link, trans } = props;
  const isPending = link.state.pending !== null;
  const lost = lostRanks(cluster);
  const why = Private.whyNotNow(cluster, trans);
  return (
    <div className="jp-gw-Running">
      <Resize
        key={cluster.n}
        n={cluster.n}
        why={why}
        disabled={isPending || (why !== '' && cluster.state !== 'failed')}
        onResize={ranks => void link.resize(ranks)}
        trans={trans}
      />
      {cluster.state === 'failed' && (
        <div className="jp-gw-Controls">
          <button
            type="button"
            className="jp-gw-Button"
            disabled={isPending}
            onClick={() => void link.restart()}
          >
            <refreshIcon.react tag="span" aria-hidden="true" />
            {lost > 0
              ? trans._n('Restart %1 lost rank', 'Restart %1 lost ranks', lost)
              : trans.__('Repair')}
          </button>
        </div>
      )}
      <div className="jp-gw-Controls">
        <button
          type="button"
          className="jp-gw-Button"
          title={why || trans.__('Measure the links between its ranks')}
          disabled={isPending || why !== ''}
          onClick={() => void link.calibrate()}
        >
          {trans.__('Calibrate')}
        </button>
        {props.onInsert && (
          <button
            type="button"
            className="jp-gw-Button"
            title={trans.__('Insert a cell that connects to this cluster')}
            disabled={cluster.source === ''}
            onClick={() => props.onInsert!(cluster.source)}
          >
            <addIcon.react tag="span" aria-hidden="true" />
            {trans.__('Cell')}
          </button>
        )}
        <button
          type="button"
          className="jp-gw-Button"
          disabled={isPending || cluster.state === 'stopping'}
          onClick={() => void link.stop()}
        >
          <stopIcon.react tag="span" aria-hidden="true" />
          {trans.__('Stop')}
        </button>
      </div>
      {cluster.fabric && <p className="jp-gw-Note">{cluster.fabric}</p>}
    </div>
  );
}

export namespace Controls {
  export interface IProps {
    cluster: ICluster;
    link: KernelLink;
    /** Insert a cell with this source; absent without a notebook. */
    onInsert?: (source: string) => void;
    trans: TranslationBundle;
  }
}

function Resize(props: {
  n: number;
  why: string;
  disabled: boolean;
  onResize: (ranks: number) => void;
  trans: TranslationBundle;
}): JSX.Element {
  const { n, trans } = props;
  const [text, setText] = useState(n > 0 ? String(n) : '');
  const id = useId();
  const isValid = isRanks(text);
  return (
    <form
      className="jp-gw-Controls"
      onSubmit={event => {
        event.preventDefault();
        props.onResize(Number(text));
      }}
    >
      <label htmlFor={id}>{trans.__('Ranks')}</label>
      <input
        id={id}
        className="jp-gw-Controls-ranks"
        type="number"
        min={1}
        value={text}
        aria-invalid={!isValid}
        disabled={props.disabled}
        title={props.disabled ? props.why : undefined}
        onChange={event => setText(event.target.value)}
      />
      <button
        type="submit"
        className="jp-gw-Button"
        disabled={props.disabled || !isValid || Number(text) === n}
        title={
          props.disabled
            ? props.why
            : trans.__('Change the number of ranks, of all VMs together')
        }
      >
        {trans.__('Resize')}
      </button>
    </form>
  );
}

namespace Private {
  /** Why ranks cannot be changed and measured now; empty if they can. */
  export function whyNotNow(
    cluster: ICluster,
    trans: TranslationBundle
  ): string {
    switch (cluster.state) {
      case 'ready':
        return '';
      case 'running':
        return trans.__(
          'Its ranks are in use. Wait for the end of the cell, or interrupt it.'
        );
      case 'failed':
        return trans.__('Restart the lost ranks first.');
      default:
        return trans.__('Wait until it is ready.');
    }
  }
}
