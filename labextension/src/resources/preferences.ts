/** What a person may choose of the panel, and what holds where they did not. */
import { MINUTE } from '../common/history';
import { RateUnit } from '../common/format';

export const SECTIONS = [
  'topology',
  'gpus',
  'network',
  'ranks',
  'processes'
] as const;

/** A part of a card that can be closed. */
export type SectionName = (typeof SECTIONS)[number];

export interface IPreferences {
  /** Up to so many cards are open by themselves. */
  readonly openCards: number;
  /** The sections of a card that are open by themselves. */
  readonly openSections: readonly SectionName[];
  readonly virtualInterfaces: boolean;
  /** What a sparkline shows, in seconds. */
  readonly historySeconds: number;
  readonly rates: RateUnit;
}

export const DEFAULTS: IPreferences = {
  openCards: 2,
  openSections: SECTIONS,
  virtualInterfaces: false,
  historySeconds: MINUTE,
  rates: 'bits'
};
