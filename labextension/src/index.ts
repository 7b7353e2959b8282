import { timingsRenderer } from './live/plugin';
import { workbenchPanel } from './panel/plugin';

export default [workbenchPanel, timingsRenderer];
