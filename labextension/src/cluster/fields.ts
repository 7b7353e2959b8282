/** The fields of the form that starts a cluster: which apply where, and their checks. */
import { ITranslate } from '../common/translate';
import { IStartOptions } from '../schema/cluster';

/** The fields of each launcher; those of the kernel are in `start_options.py`. */
export const FIELDS = {
  local: ['ranks', 'backend', 'keep', 'releaseAfter'],
  ssh: ['hosts', 'backend', 'sshConfig', 'keep', 'releaseAfter'],
  mpi: ['hosts', 'ranks', 'backend', 'sshConfig', 'keep', 'releaseAfter'],
  slurm: ['ranks', 'partition', 'time', 'backend', 'releaseAfter'],
  existing: ['profile', 'ranks', 'backend', 'keep', 'releaseAfter']
} as const;

export type Launcher = keyof typeof FIELDS;
export type Field = (typeof FIELDS)[Launcher][number];

export const LAUNCHERS = Object.keys(FIELDS) as Launcher[];
export const BACKENDS = ['horovod', 'ddp'] as const;

/** Fields that are shown on request only. */
export const MORE: readonly Field[] = ['sshConfig', 'keep', 'releaseAfter'];

/** What the form contains, as text. */
export type IDraft = { readonly launcher: Launcher } & Readonly<
  Record<Field, string>
>;

export const EMPTY: IDraft = {
  launcher: 'local',
  ranks: '2',
  hosts: '',
  backend: 'horovod',
  sshConfig: '',
  profile: '',
  partition: '',
  time: '',
  keep: '',
  releaseAfter: ''
};

export const MAX_RANKS = 1024;
const MAX_CHARACTERS = 100;
/** Seconds, or parts with a unit each: one without would backtrack exponentially. */
const DURATION =
  /^\s*((\d+(\.\d*)?|\.\d+)\s*|((\d+(\.\d*)?|\.\d+)\s*(ms|min|[smhd])\s*)+)$/;

/** The fields of the draft's launcher, in order. */
export function fieldsOf(draft: IDraft): readonly Field[] {
  return FIELDS[draft.launcher];
}

/** Whether hosts were given that decide the number of ranks. */
export function hostsDecide(draft: IDraft): boolean {
  return (
    (fieldsOf(draft) as Field[]).includes('hosts') && draft.hosts.trim() !== ''
  );
}

/** Whether a text is a number of ranks. */
export function isRanks(text: string): boolean {
  const number = Number(text);
  return /^\s*\d+\s*$/.test(text) && number >= 1 && number <= MAX_RANKS;
}

/** What is wrong with each field that is invalid. */
export function problemsOf(
  draft: IDraft,
  trans: ITranslate
): Partial<Record<Field, string>> {
  const checks: Partial<Record<Field, () => string | false>> = {
    ranks: () =>
      !hostsDecide(draft) &&
      !(draft.launcher === 'existing' && draft.ranks.trim() === '') &&
      !isRanks(draft.ranks) &&
      trans.__('Write a number from 1 to %1.', MAX_RANKS),
    hosts: () =>
      draft.launcher === 'ssh' &&
      draft.hosts.trim() === '' &&
      trans.__('Name VMs and ranks, such as vm1:2,vm2:2, or a host file.'),
    keep: () => duration(draft.keep, trans),
    releaseAfter: () => duration(draft.releaseAfter, trans)
  };
  const found: Partial<Record<Field, string>> = {};
  for (const field of fieldsOf(draft)) {
    const problem = checks[field]?.();
    if (problem) {
      found[field] = problem;
    }
  }
  return found;
}

function duration(text: string, trans: ITranslate): string | false {
  return (
    text.trim() !== '' &&
    (text.length > MAX_CHARACTERS || !DURATION.test(text)) &&
    trans.__('Write a time such as 90s, 30m or 1h30m.')
  );
}

/** The options of a valid draft; fields that do not apply or are empty are left out. */
export function toOptions(draft: IDraft): IStartOptions {
  const options: IStartOptions = {};
  for (const field of fieldsOf(draft)) {
    const text = draft[field].trim();
    if (text === '' || (field === 'ranks' && hostsDecide(draft))) {
      continue;
    }
    if (field === 'ranks') {
      options.ranks = Number(text);
    } else {
      options[field] = text;
    }
  }
  return { ...options, launcher: draft.launcher };
}

/** Options by the names of the kernel's arguments: `n` and `ssh_config`. */
export function toArguments(
  options: IStartOptions
): Record<string, string | number> {
  const { ranks, ...others } = options;
  const found: Record<string, string | number> = {};
  if (ranks !== undefined) {
    found.n = ranks;
  }
  for (const [name, value] of Object.entries(others)) {
    if (value !== undefined) {
      found[name.replace(/[A-Z]/g, at => `_${at.toLowerCase()}`)] = value;
    }
  }
  return found;
}

/** A draft that was stored; fields that are missing or invalid have their defaults. */
export function readDraft(saved: unknown): IDraft {
  const given = (saved ?? {}) as Record<string, unknown>;
  const draft: Record<string, string> = { ...EMPTY };
  for (const name of Object.keys(EMPTY)) {
    const value = given[name];
    if (typeof value === 'string') {
      draft[name] = value;
    }
  }
  if (!LAUNCHERS.includes(draft.launcher as Launcher)) {
    draft.launcher = EMPTY.launcher;
  }
  if (!(BACKENDS as readonly string[]).includes(draft.backend)) {
    draft.backend = EMPTY.backend;
  }
  return draft as unknown as IDraft;
}
