/** What a person may choose of the panel, and what holds where they did not. */
import { MINUTE } from '../common/history';
import { RateUnit } from '../common/format';

/** A part of a card that can be closed. */
export type SectionName =
  'topology' | 'gpus' | 'network' | 'ranks' | 'processes';

export interface IPreferences {
  /** Up to so many cards are open by themselves. */
  readonly openCards: number;
  /** The sections of a card that are open by themselves. */
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
