import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { DEFAULTS, IPreferences } from '../resources/preferences';

/**
 * Apply the user's settings now and at each change; use the defaults if JupyterLab's
 * settings are unavailable.
 */
export async function followSettings(
  registry: ISettingRegistry,
  plugin: string,
  apply: (preferences: IPreferences) => void
): Promise<void> {
  try {
    const settings = await registry.load(plugin);
    const hand = (): void => apply(preferencesOf(settings.composite));
    settings.changed.connect(hand);
    hand();
  } catch (error) {
    console.warn('The panel uses its defaults: no settings', error);
  }
}

/** The registry has checked the values against the schema. */
export function preferencesOf(
  composite: ISettingRegistry.ISettings['composite']
): IPreferences {
  const set = composite as Partial<IPreferences>;
  return {
    ...DEFAULTS,
    ...set,
    openSections: { ...DEFAULTS.openSections, ...set.openSections }
  };
}
