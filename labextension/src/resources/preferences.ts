/** The user's settings of the panel, and their defaults. */
import { RateUnit } from '../common/format';
import { MINUTE } from '../common/history';

/** A section of a card that can be closed. */
export type SectionName =
  'topology' | 'gpus' | 'network' | 'ranks' | 'processes';

export interface IPreferences {
  /** Up to this number, cards are open by default. */
  readonly openCards: number;
  /** The sections of a card that are open by default. */
  readonly openSections: Readonly<Record<SectionName, boolean>>;
  readonly virtualInterfaces: boolean;
  /** The period of a sparkline, in seconds. */
  readonly historySeconds: number;
  readonly rates: RateUnit;
}

export const DEFAULTS: IPreferences = {
  openCards: 2,
  openSections: {
    topology: true,
    gpus: true,
    network: true,
    ranks: true,
    processes: true
  },
  virtualInterfaces: false,
  historySeconds: MINUTE,
  rates: 'bits'
};
