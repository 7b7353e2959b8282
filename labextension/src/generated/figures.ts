/**
 * The figures that are drawn: their colours and names.
 *
 * Made from `workbench/schema/figures.py` by `tests/support/generated_typescript.py`: do not edit.
 */

import { ITranslate } from '../common/translate';

export const COLORS = {
  data_us: '#56B4E9',
  copy_us: '#F0E442',
  forward_us: '#009E73',
  backward_us: '#0072B2',
  exposed_us: '#D55E00',
  optimizer_us: '#CC79A7',
  other_us: '#999999',
  overlapped_us: '#E69F00'
} as const;

export type DrawnFigure = keyof typeof COLORS;

/** The figure's name in the user's language. */
export function figureName(figure: DrawnFigure, trans: ITranslate): string {
  const names: Record<DrawnFigure, string> = {
    data_us: trans.__('data'),
    copy_us: trans.__('copy'),
    forward_us: trans.__('forward'),
    backward_us: trans.__('backward'),
    exposed_us: trans.__('exposed'),
    optimizer_us: trans.__('optimizer'),
    other_us: trans.__('other'),
    overlapped_us: trans.__('overlapped')
  };
  return names[figure];
}
