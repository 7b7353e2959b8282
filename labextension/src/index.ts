import { commands } from './commands/plugin';
import { liveTab } from './live/tabplugin';
import { timingsRenderer } from './live/plugin';
import { fileLinks } from './files/plugin';
import { notifications } from './notifications/plugin';
import { workbenchPanel } from './panel/plugin';
import { runningClusters } from './running/plugin';
import { clusterStatus } from './statusbar/plugin';

export { IWorkbench } from './tokens';

export default [
  workbenchPanel,
  timingsRenderer,
  fileLinks,
  liveTab,
  commands,
  runningClusters,
  clusterStatus,
  notifications
];
