import { LabIcon } from '@jupyterlab/ui-components';

import workbench from '../../style/icons/workbench.svg';

export const workbenchIcon = new LabIcon({
  name: 'gradient-workbench:panel',
  svgstr: workbench
});
