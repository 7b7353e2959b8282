import { TranslationBundle } from '@jupyterlab/translation';
import {
  addToolbarButtonClass,
  fileUploadIcon,
  LabIcon,
  ReactWidget,
  refreshIcon,
  settingsIcon,
  SidePanel,
  Toolbar,
  ToolbarButtonComponent
} from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Panel, Widget } from '@lumino/widgets';
import { createElement } from 'react';

import { ClusterModel } from '../cluster/model';
import { ClusterView } from '../cluster/view';
import { ResourcesModel } from '../resources/model';
import { ResourcesView } from '../resources/view';
import { FileDrop } from './filedrop';

const SLEEP_AFTER_MS = 1000;

/** The panel in the sidebar; its models sleep while it is hidden. */
export class WorkbenchPanel extends SidePanel {
  constructor(options: WorkbenchPanel.IOptions) {
    super({ content: new Panel() });
    const { cluster, resources, trans } = options;
    this._models = [cluster, resources];
    this.id = 'gradient-workbench-panel';
    this.addClass('jp-gw-Panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Gradient Workbench'));
    this.header.addWidget(Private.header(options));
    this.content.addClass('jp-gw-Body');
    this.addWidget(new ClusterView(cluster, trans));
    this.addWidget(new ResourcesView(resources, trans));
    this._drop = new FileDrop(this.node, file => {
      void resources.files.open(file);
    });
    document.addEventListener('visibilitychange', this._wakeOrSleep);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    document.removeEventListener('visibilitychange', this._wakeOrSleep);
    clearTimeout(this._timer);
    this._drop.dispose();
    this._models.forEach(model => model.dispose());
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._wakeOrSleep();
  }

  protected onAfterDetach(message: Message): void {
    super.onAfterDetach(message);
    this._wakeOrSleep();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._wakeOrSleep();
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._wakeOrSleep();
  }

  /** Wake immediately; sleep after a delay, since a new theme hides the panel briefly. */
  private _wakeOrSleep = (): void => {
    clearTimeout(this._timer);
    if (this.isVisible && document.visibilityState === 'visible') {
      this._setAwake(true);
    } else {
      this._timer = setTimeout(() => this._setAwake(false), SLEEP_AFTER_MS);
    }
  };

  private _setAwake(awake: boolean): void {
    this._models.forEach(model => {
      model.awake = awake;
    });
  }

  private _drop: FileDrop;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _models: [ClusterModel, ResourcesModel];
}

export namespace WorkbenchPanel {
  /** The panel owns its models, and disposes them. */
  export interface IOptions {
    cluster: ClusterModel;
    resources: ResourcesModel;
    /** Let the user choose a file, and show its content. */
    openFile: () => void;
    /** Open the settings; absent if the front end has none. */
    openSettings?: () => void;
    trans: TranslationBundle;
  }
}

namespace Private {
  export function header(options: WorkbenchPanel.IOptions): Widget {
    const { openFile, openSettings, resources, trans } = options;
    const toolbar = new Toolbar();
    toolbar.addClass('jp-gw-Header');
    const title = new Widget({ node: document.createElement('h2') });
    title.node.textContent = trans.__('Resources');
    toolbar.addItem('title', title);
    toolbar.addItem('spacer', Toolbar.createSpacerItem());
    toolbar.addItem(
      'file',
      button(fileUploadIcon, trans.__('Open file…'), openFile)
    );
    toolbar.addItem(
      'refresh',
      button(refreshIcon, trans.__('Refresh'), () => void resources.refresh())
    );
    if (openSettings) {
      toolbar.addItem(
        'settings',
        button(settingsIcon, trans.__('Settings of this panel'), openSettings)
      );
    }
    return toolbar;
  }

  /** Not a `ToolbarButton`, which reports every second click as pressed to screen readers. */
  function button(icon: LabIcon, label: string, onClick: () => void): Widget {
    const props = { icon, tooltip: label, onClick };
    return addToolbarButtonClass(
      ReactWidget.create(createElement(ToolbarButtonComponent, props))
    );
  }
}
