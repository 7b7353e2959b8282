import { LabIcon } from '@jupyterlab/ui-components';

import distributed from '../../style/icons/distributed.svg';
import workbench from '../../style/icons/workbench.svg';

export const workbenchIcon = new LabIcon({
  name: 'gradient-workbench:panel',
  svgstr: workbench
});

/** One cell, and the ranks that run it. */
export const distributedIcon = new LabIcon({
  name: 'gradient-workbench:distributed',
  svgstr: distributed
});
