import { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, VDomRenderer } from '@jupyterlab/ui-components';
import React from 'react';

import { Card } from './card';
import { FileShelf, MAX_BYTES } from './files';
import { Findings } from './findings';
import { Machine } from './machine';
import { ResourcesModel } from './model';
import { IShared, Shared } from './shared';

/** The machines as cards: the server's, the cluster's, and those from files. */
export class ResourcesView extends VDomRenderer<ResourcesModel> {
  constructor(model: ResourcesModel, trans: TranslationBundle) {
    super(model);
    this._trans = trans;
    this._shared = this._share();
    this.addClass('jp-gw-Resources');
  }

  protected render(): JSX.Element {
    const { model } = this;
    if (this._shared.preferences !== model.preferences) {
      this._shared = this._share();
    }
    return (
      <Shared.Provider value={this._shared}>
        {this._machines()}
        {(model.files.machines.length > 0 || model.files.failure) &&
          this._files()}
      </Shared.Provider>
    );
  }

  private _machines(): JSX.Element {
    const { findings, machines, server } = this.model;
    const trans = this._trans;
    const title =
      machines.length === 1
        ? trans.__('This machine')
        : trans._n('%1 VM', '%1 VMs', machines.length);
    return (
      <section aria-label={title}>
        <h3 className="jp-gw-Heading">
          <span>{title}</span>
          <span className="jp-gw-Heading-detail" role="status">
            {Private.feedWord(this.model, trans)}
          </span>
        </h3>
        {server.error && (
          <p className="jp-gw-Note jp-gw-mod-error" role="alert">
            {trans.__('The server did not answer: %1', server.error)}
          </p>
        )}
        <Findings
          findings={findings}
          label={trans.__('Findings across the VMs')}
          trans={trans}
        />
        {server.machine.snapshot || machines.length > 1 ? (
          <ul className="jp-gw-Cards">{machines.map(this._card)}</ul>
        ) : (
          !server.error && <p className="jp-gw-Note">{trans.__('Loading…')}</p>
        )}
      </section>
    );
  }

  private _files(): JSX.Element {
    const { files } = this.model;
    const trans = this._trans;
    return (
      <section className="jp-gw-Files" aria-label={trans.__('From files')}>
        <h3 className="jp-gw-Heading">{trans.__('From files')}</h3>
        {files.failure && (
          <p className="jp-gw-Note jp-gw-mod-error" role="alert">
            {Private.failureWords(files.failure, trans)}
            <button
              type="button"
              className="jp-gw-Close"
              title={trans.__('Dismiss')}
              aria-label={trans.__('Dismiss')}
              onClick={() => files.forgive()}
            >
              <closeIcon.react tag="span" aria-hidden="true" />
            </button>
          </p>
        )}
        <ul className="jp-gw-Cards">{files.machines.map(this._card)}</ul>
      </section>
    );
  }

  private _card = (machine: Machine): JSX.Element => (
    <Card
      key={machine.key}
      machine={machine}
      open={this.model.isOpen(machine)}
      ranks={this.model.ranksOn(machine)}
      weakest={this.model.weakestOn(machine)}
      onOpen={this._onOpen}
      onClose={machine.kind === 'file' ? this._onClose : undefined}
    />
  );

  private _onOpen = (machine: Machine, open: boolean): void => {
    this.model.openings.set(machine.key, open);
  };

  /** Move the focus to the previous card, since it would be lost with the button. */
  private _onClose = (machine: Machine): void => {
    const summaries = [
      ...this.node.querySelectorAll<HTMLElement>('.jp-gw-Card > summary')
    ];
    const { files, machines } = this.model;
    const place = machines.length + files.machines.indexOf(machine);
    summaries[place - 1]?.focus();
    files.close(machine);
  };

  private _share(): IShared {
    const { openings, preferences } = this.model;
    return { trans: this._trans, preferences, openings };
  }

  private _trans: TranslationBundle;
  private _shared: IShared;
}

namespace Private {
  export function feedWord(
    model: ResourcesModel,
    trans: TranslationBundle
  ): string {
    const state = model.server.feedState;
    switch (state.name) {
      case 'live':
        return trans.__('live');
      case 'waiting':
        return trans.__('not live: %1; reconnecting', state.reason);
      case 'connecting':
        return trans.__('connecting…');
      case 'closed':
        return trans.__('asleep');
    }
  }

  export function failureWords(
    { error, name }: FileShelf.IFailure,
    trans: TranslationBundle
  ): string {
    if (error instanceof FileShelf.Session) {
      return error.hasCell
        ? trans.__(
            '%1 is a recorded session. Copy it to the folder of the notebook, then run the new cell, which replays it.',
            name
          )
        : trans.__(
            '%1 is a recorded session. Open a notebook, and run %timings replay with the path of the file.',
            name
          );
    }
    return error instanceof FileShelf.TooLarge
      ? trans.__(
          '%1 is larger than %2 MiB: neither a topology nor a snapshot.',
          name,
          MAX_BYTES / 2 ** 20
        )
      : trans.__('%1 cannot be shown: %2', name, error.message);
  }
}
