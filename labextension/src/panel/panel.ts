import { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon, Toolbar, ToolbarButton } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Panel, Widget } from '@lumino/widgets';

import { ClusterModel } from '../cluster/model';
import { ClusterView } from '../cluster/view';
import { ResourcesModel } from '../resources/model';
import { ResourcesView } from '../resources/view';

/** The panel in the sidebar; its models sleep while nobody can see it. */
export class WorkbenchPanel extends Panel {
  constructor(options: WorkbenchPanel.IOptions) {
    super();
    const { cluster, resources, trans } = options;
    this._models = [cluster, resources];
    this.id = 'gradient-workbench-panel';
    this.addClass('jp-gw-Panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Gradient Workbench'));
    this.addWidget(Private.header(trans, () => void resources.refresh()));
    const body = new Panel();
    body.addClass('jp-gw-Body');
    body.addWidget(new ClusterView(cluster, trans));
    body.addWidget(new ResourcesView(resources, trans));
    this.addWidget(body);
    document.addEventListener('visibilitychange', this._wakeOrSleep);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    document.removeEventListener('visibilitychange', this._wakeOrSleep);
    this._models.forEach(model => model.dispose());
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._wakeOrSleep();
  }

  protected onBeforeDetach(message: Message): void {
    this._setAwake(false);
    super.onBeforeDetach(message);
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._wakeOrSleep();
  }

  protected onBeforeHide(message: Message): void {
    this._setAwake(false);
    super.onBeforeHide(message);
  }

  private _wakeOrSleep = (): void => {
    this._setAwake(this.isVisible && document.visibilityState === 'visible');
  };

  private _setAwake(awake: boolean): void {
    this._models.forEach(model => {
      model.awake = awake;
    });
  }

  private _models: [ClusterModel, ResourcesModel];
}

export namespace WorkbenchPanel {
  /** The panel owns its models, and disposes them. */
  export interface IOptions {
    cluster: ClusterModel;
    resources: ResourcesModel;
    trans: TranslationBundle;
  }
}

namespace Private {
  export function header(
    trans: TranslationBundle,
    refresh: () => void
  ): Widget {
    const toolbar = new Toolbar();
    toolbar.addClass('jp-gw-Header');
    const title = new Widget({ node: document.createElement('h2') });
    title.node.textContent = trans.__('Resources');
    toolbar.addItem('title', title);
    toolbar.addItem('spacer', Toolbar.createSpacerItem());
    toolbar.addItem(
      'refresh',
      new ToolbarButton({
        icon: refreshIcon,
        tooltip: trans.__('Look at this machine again'),
        onClick: refresh
      })
    );
    return toolbar;
  }
}
