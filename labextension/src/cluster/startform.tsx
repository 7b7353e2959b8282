import { TranslationBundle } from '@jupyterlab/translation';
import { folderIcon, runIcon } from '@jupyterlab/ui-components';
import React, {
  useCallback,
  useId,
  useState,
  useSyncExternalStore
} from 'react';

import { IStartOptions } from '../schema/cluster';
import {
  BACKENDS,
  Field,
  fieldsOf,
  hostsDecide,
  IDraft,
  Launcher,
  LAUNCHERS,
  MORE,
  problemsOf,
  toOptions
} from './fields';
import { LastUsed } from './lastused';

/** The form that starts a cluster: where, and the options that apply there. */
export function StartForm(props: StartForm.IProps): JSX.Element {
  const { lastUsed, trans } = props;
  const draft = useDraft(lastUsed);
  const [tried, setTried] = useState(false);
  const problems = problemsOf(draft, trans);
  const isValid = Object.keys(problems).length === 0;
  const submit = (event: React.FormEvent): void => {
    event.preventDefault();
    setTried(!isValid);
    if (isValid) {
      void lastUsed.save();
      props.onStart(toOptions(draft));
    }
  };
  const row = (field: Field): JSX.Element => (
    <FieldRow
      key={field}
      field={field}
      draft={draft}
      // What was not filled in yet is no error before the first try.
      problem={tried || draft[field] !== '' ? problems[field] : undefined}
      disabled={props.disabled}
      onChange={value => lastUsed.set({ [field]: value })}
      onChoose={field === 'hosts' ? props.onChoose : undefined}
      trans={trans}
    />
  );
  const fields = fieldsOf(draft);
  return (
    <form
      className="jp-gw-Form"
      aria-label={trans.__('Start a cluster')}
      onSubmit={submit}
      noValidate
    >
      <PlaceRow {...props} draft={draft} />
      {fields.filter(field => !MORE.includes(field)).map(row)}
      <details className="jp-gw-Form-more">
        <summary>{trans.__('More options')}</summary>
        {fields.filter(field => MORE.includes(field)).map(row)}
      </details>
      <div className="jp-gw-Controls">
        <button
          type="submit"
          className="jp-gw-Button"
          disabled={props.disabled || (tried && !isValid)}
        >
          <runIcon.react tag="span" aria-hidden="true" />
          {trans.__('Start')}
        </button>
      </div>
    </form>
  );
}

export namespace StartForm {
  export interface IProps {
    lastUsed: LastUsed;
    /** While a request is pending. */
    disabled: boolean;
    onStart: (options: IStartOptions) => void;
    /** Let the user choose a host file; absent if the front end has no files. */
    onChoose?: () => Promise<string | null>;
    trans: TranslationBundle;
  }
}

function useDraft(lastUsed: LastUsed): IDraft {
  const subscribe = useCallback(
    (changed: () => void) => {
      lastUsed.changed.connect(changed);
      return () => {
        lastUsed.changed.disconnect(changed);
      };
    },
    [lastUsed]
  );
  return useSyncExternalStore(subscribe, () => lastUsed.draft);
}

function PlaceRow(props: StartForm.IProps & { draft: IDraft }): JSX.Element {
  const { draft, lastUsed, trans } = props;
  const id = useId();
  const names: Record<Launcher, string> = {
    local: trans.__('This machine'),
    ssh: trans.__('VMs over ssh'),
    mpi: trans.__('MPI (mpiexec)'),
    slurm: trans.__('Slurm'),
    existing: trans.__('Engines of ipyparallel')
  };
  return (
    <div className="jp-gw-Form-row">
      <label htmlFor={id}>{trans.__('Where')}</label>
      <select
        id={id}
        className="jp-gw-Form-field jp-gw-mod-wide"
        value={draft.launcher}
        disabled={props.disabled}
        onChange={event =>
          lastUsed.set({ launcher: event.target.value as Launcher })
        }
      >
        {LAUNCHERS.map(launcher => (
          <option key={launcher} value={launcher}>
            {names[launcher]}
          </option>
        ))}
      </select>
    </div>
  );
}

interface IFieldRowProps {
  field: Field;
  draft: IDraft;
  problem: string | undefined;
  disabled: boolean;
  onChange: (value: string) => void;
  onChoose?: () => Promise<string | null>;
  trans: TranslationBundle;
}

function FieldRow(props: IFieldRowProps): JSX.Element {
  const { draft, field, problem, trans } = props;
  const id = useId();
  const byHosts = field === 'ranks' && hostsDecide(draft);
  const common = {
    id,
    className: `jp-gw-Form-field${props.onChoose ? '' : ' jp-gw-mod-wide'}`,
    disabled: props.disabled || byHosts,
    'aria-invalid': problem !== undefined,
    'aria-describedby': problem === undefined ? undefined : `${id}-problem`,
    onChange: (
      event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement>
    ) => props.onChange(event.target.value)
  };
  return (
    <div className="jp-gw-Form-row">
      <label htmlFor={id} title={Private.explanation(field, trans)}>
        {Private.label(field, trans)}
      </label>
      {field === 'backend' ? (
        <select {...common} value={draft.backend}>
          {BACKENDS.map(name => (
            <option key={name} value={name}>
              {Private.BACKEND_NAMES[name]}
            </option>
          ))}
        </select>
      ) : (
        <input
          {...common}
          type={field === 'ranks' ? 'number' : 'text'}
          min={field === 'ranks' ? 1 : undefined}
          spellCheck={false}
          placeholder={
            byHosts
              ? trans.__('as the hosts say')
              : Private.placeholder(draft, field, trans)
          }
          value={byHosts ? '' : draft[field]}
        />
      )}
      {props.onChoose && (
        <button
          type="button"
          className="jp-gw-Button jp-gw-mod-icon"
          title={trans.__('Choose a host file…')}
          aria-label={trans.__('Choose a host file…')}
          disabled={props.disabled}
          onClick={() =>
            void props.onChoose!().then(
              path => path !== null && props.onChange(path)
            )
          }
        >
          <folderIcon.react tag="span" aria-hidden="true" />
        </button>
      )}
      {problem && (
        <span id={`${id}-problem`} className="jp-gw-Form-problem" role="alert">
          {problem}
        </span>
      )}
    </div>
  );
}

namespace Private {
  export const BACKEND_NAMES: Record<(typeof BACKENDS)[number], string> = {
    horovod: 'Horovod',
    ddp: 'DDP'
  };

  export function label(field: Field, trans: TranslationBundle): string {
    const labels: Record<Field, string> = {
      ranks: trans.__('Ranks'),
      hosts: trans.__('Hosts'),
      backend: trans.__('Backend'),
      sshConfig: trans.__('ssh config'),
      profile: trans.__('Profile'),
      partition: trans.__('Partition'),
      time: trans.__('Time limit'),
      keep: trans.__('Keep for'),
      releaseAfter: trans.__('Idle limit')
    };
    return labels[field];
  }

  /** What a label is too short to say. */
  export function explanation(
    field: Field,
    trans: TranslationBundle
  ): string | undefined {
    const explanations: Partial<Record<Field, string>> = {
      ranks: trans.__('The number of ranks, of all VMs together'),
      hosts: trans.__('VMs with their ranks, or the path of a host file'),
      sshConfig: trans.__('An ssh client configuration instead of yours'),
      keep: trans.__('How long it survives its kernel'),
      releaseAfter: trans.__('Stop after this time without a cell')
    };
    return explanations[field];
  }

  /** An example, or what an empty field means. */
  export function placeholder(
    draft: IDraft,
    field: Field,
    trans: TranslationBundle
  ): string {
    const examples: Partial<Record<Field, string>> = {
      ranks: draft.launcher === 'existing' ? trans.__('one per engine') : '',
      hosts: 'vm1:2,vm2:2',
      sshConfig: '~/.ssh/config',
      profile: 'default',
      partition: trans.__('default'),
      time: '2:00:00',
      keep: '30m',
      releaseAfter: '30m'
    };
    return examples[field] ?? '';
  }
}
