import { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import React, { useState } from 'react';

import { orElse } from '../common/known';
import { machineLine, oneLine } from './describe';
import { CpuAndMemory, Gpus, Nics } from './devices';
import { Findings, Verdict } from './findings';
import { ResourcesModel } from './model';

/** This machine: a card that is told in one line where it is closed. */
export class ResourcesView extends VDomRenderer<ResourcesModel> {
  constructor(model: ResourcesModel, trans: TranslationBundle) {
    super(model);
    this._trans = trans;
    this.addClass('jp-gw-Resources');
  }

  protected render(): JSX.Element {
    const { model } = this;
    const trans = this._trans;
    return (
      <section aria-label={trans.__('This machine')}>
        <h3 className="jp-gw-Heading">
          <span>{trans.__('This machine')}</span>
          <span className="jp-gw-Heading-detail" role="status">
            {Private.feedWord(model, trans)}
          </span>
        </h3>
        {model.error && (
          <p className="jp-gw-Note jp-gw-mod-error" role="alert">
            {trans.__('The server did not answer: %1', model.error)}
          </p>
        )}
        {model.snapshot ? (
          <Card model={model} trans={trans} />
        ) : (
          !model.error && (
            <p className="jp-gw-Note">{trans.__('Looking at this machine…')}</p>
          )
        )}
      </section>
    );
  }

  private _trans: TranslationBundle;
}

function Card(props: {
  model: ResourcesModel;
  trans: TranslationBundle;
}): JSX.Element {
  const { model, trans } = props;
  const [open, setOpen] = useState(true);
  const { host } = model.snapshot!;
  const line = (open ? machineLine : oneLine)(model.snapshot!, trans);
  const stale = model.feedState.name !== 'live' ? 'jp-gw-mod-stale' : '';
  return (
    <details
      className={`jp-gw-Card ${stale}`}
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <span className="jp-gw-Card-name">
          {orElse(host.hostname, trans.__('this machine'))}
        </span>
        <span className="jp-gw-Card-line" title={line}>
          {line}
        </span>
        <Verdict findings={model.findings} trans={trans} />
      </summary>
      <div className="jp-gw-Card-body">
        <CpuAndMemory model={model} trans={trans} />
        <Gpus model={model} trans={trans} />
        <Nics model={model} trans={trans} />
        <Findings findings={model.findings} trans={trans} />
      </div>
    </details>
  );
}

namespace Private {
  export function feedWord(
    model: ResourcesModel,
    trans: TranslationBundle
  ): string {
    const state = model.feedState;
    switch (state.name) {
      case 'live':
        return trans.__('live');
      case 'waiting':
        return trans.__('not live: %1; trying again', state.reason);
      case 'connecting':
        return trans.__('connecting…');
      case 'closed':
        return trans.__('asleep');
    }
  }
}
