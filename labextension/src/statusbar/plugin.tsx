/* eslint-disable jupyter/prefer-lazy-imports -- small, and used when the plugin is activated */
import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import React from 'react';

import { ClusterModel } from '../cluster/model';
import { CommandIDs, IWorkbench } from '../tokens';
import { statusOf } from './text';

export const clusterStatus: JupyterFrontEndPlugin<void> = {
  id: 'gradient-workbench:status',
  description: 'Shows the cluster of the active notebook in the status bar.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    const { cluster } = workbench;
    if (!statusBar) {
      return;
    }
    const trans = (translator ?? nullTranslator).load('gradient_workbench');
    cluster.followAlways();
    statusBar.registerStatusItem(clusterStatus.id, {
      item: new StatusItem(cluster, trans, () => {
        void app.commands.execute(CommandIDs.openPanel);
      }),
      align: 'left',
      rank: 10,
      isActive: () => statusOf(cluster.link?.state ?? null, trans) !== null,
      activeStateChanged: cluster.stateChanged
    });
  }
};

class StatusItem extends VDomRenderer<ClusterModel> {
  constructor(
    model: ClusterModel,
    trans: TranslationBundle,
    openPanel: () => void
  ) {
    super(model);
    this._trans = trans;
    this._openPanel = openPanel;
    this.addClass('jp-gw-StatusItem');
  }

  protected render(): JSX.Element | null {
    const status = statusOf(this.model.link?.state ?? null, this._trans);
    return (
      status && (
        <button
          type="button"
          className={status.isTrouble ? 'jp-gw-mod-error' : ''}
          title={status.title}
          onClick={this._openPanel}
        >
          {status.isTrouble ? '⚠ ' : ''}
          {status.text}
        </button>
      )
    );
  }

  private _trans: TranslationBundle;
  private _openPanel: () => void;
}
