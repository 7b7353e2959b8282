import { Token } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import { ClusterModel } from './cluster/model';
import { ResourcesModel } from './resources/model';

/** What the panel shows, for other plugins and extensions. */
export interface IWorkbench {
  /** The cluster of the active notebook. */
  readonly cluster: ClusterModel;
  /** This machine, the VMs of the cluster, and opened files. */
  readonly resources: ResourcesModel;
  /** The panel in the sidebar. */
  readonly panel: Widget;
}

export const IWorkbench = new Token<IWorkbench>(
  'gradient-workbench:IWorkbench',
  'The cluster of the active notebook and the resources that the panel of Gradient Workbench shows.'
);

export namespace CommandIDs {
  export const openPanel = 'workbench:open-panel';
  export const openFile = 'workbench:open-file';
  export const openLive = 'workbench:open-live-view';
  export const defaultLayout = 'workbench:default-layout';
  export const toggleDistributed = 'workbench:toggle-distributed';
  export const start = 'workbench:start-cluster';
  export const stop = 'workbench:stop-cluster';
  export const restart = 'workbench:restart-ranks';
  export const resize = 'workbench:resize-cluster';
  export const calibrate = 'workbench:calibrate-fabric';
}
