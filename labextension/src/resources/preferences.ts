/** What a person may choose of the panel, and what holds where they did not. */
import { RateUnit } from '../common/format';
import { MINUTE } from '../common/history';

/** A part of a card that can be closed. */
export type SectionName =
  'topology' | 'gpus' | 'network' | 'ranks' | 'processes';

export interface IPreferences {
  /** Up to this many cards are open by default. */
  readonly openCards: number;
  /** The sections of a card that are open by default. */
  readonly openSections: Readonly<Record<SectionName, boolean>>;
  readonly virtualInterfaces: boolean;
  /** What a sparkline shows, in seconds. */
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
