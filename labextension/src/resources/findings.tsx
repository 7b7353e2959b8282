import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { CopyButton } from '../common/copy';
import { More, useSome } from '../common/some';
import { IFinding, Severity } from '../schema/findings';

/** Findings listed at a time. */
const MAX_SHOWN = 20;

const ORDER: Severity[] = ['error', 'warning', 'info'];

/** The doctor's findings, the most severe first, each with its fix on demand. */
export function Findings(props: {
  findings: readonly IFinding[];
  /** The subject of the findings. */
  label: string;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { findings, label, trans } = props;
  const sorted = [...findings].sort(
    (a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity)
  );
  const some = useSome(sorted, MAX_SHOWN);
  return sorted.length === 0 ? null : (
    <ul className="jp-gw-Findings" aria-label={label}>
      {some.shown.map(finding => (
        <li key={`${finding.rule}/${finding.subject}`}>
          <details className={`jp-gw-Finding jp-gw-mod-${finding.severity}`}>
            <summary>
              <SeverityIcon severity={finding.severity} />
              <span>
                <b>{severityWord(finding.severity, trans)}</b> {finding.subject}
                : {finding.evidence}
              </span>
            </summary>
            <dl>
              <dt>{trans.__('Why')}</dt>
              <dd>{finding.why}</dd>
              <dt>{trans.__('Fix')}</dt>
              <dd className="jp-gw-Finding-fix">
                <Fix text={finding.fix} trans={trans} />
              </dd>
              <dt>{trans.__('Source')}</dt>
              <dd>{finding.source}</dd>
            </dl>
          </details>
        </li>
      ))}
      {some.step > 0 && (
        <li>
          <More some={some} what={trans.__('findings')} trans={trans} />
        </li>
      )}
    </ul>
  );
}

/** A fix; its settings and commands have a button to copy them. */
function Fix(props: { text: string; trans: TranslationBundle }): JSX.Element {
  const { text, trans } = props;
  return (
    <>
      {parts(text).map(({ exact, words }, index) =>
        exact ? (
          <span key={index} className="jp-gw-Setting">
            <code>{words}</code>
            <CopyButton
              text={words}
              label={trans.__('Copy %1', words)}
              done={trans.__('copied')}
              failed={trans.__('could not be copied')}
            />
          </span>
        ) : (
          <React.Fragment key={index}>{words}</React.Fragment>
        )
      )}
    </>
  );
}

/** Split a text: commands are in backticks, or a single setting. */
function parts(text: string): { words: string; exact: boolean }[] {
  if (/^[A-Z][A-Z0-9_]*=\S+$/.test(text)) {
    return [{ words: text, exact: true }];
  }
  return text
    .split('`')
    .map((words, index) => ({ words, exact: index % 2 === 1 }))
    .filter(({ words }) => words);
}

/** For the head of a card: the number of the most severe findings, if any. */
export function Verdict(props: {
  findings: readonly IFinding[];
  /** Whether the machine is described by a file only. */
  partly: boolean;
  trans: TranslationBundle;
}): JSX.Element {
  const { findings, partly, trans } = props;
  const worst = ORDER.find(severity =>
    findings.some(one => one.severity === severity)
  );
  if (!worst) {
    const words = partly
      ? trans.__('nothing found wrong in what the file describes')
      : trans.__('nothing found wrong');
    return (
      <span
        className={`jp-gw-Verdict jp-gw-mod-${partly ? 'partly' : 'fine'}`}
        role="img"
        title={words}
        aria-label={words}
      >
        {partly ? '–' : '✓'}
      </span>
    );
  }
  const count = findings.filter(one => one.severity === worst).length;
  const words = trans.__('%1: %2', severityWord(worst, trans), count);
  return (
    <span
      className={`jp-gw-Verdict jp-gw-mod-${worst}`}
      role="img"
      title={words}
      aria-label={words}
    >
      <SeverityIcon severity={worst} />
      {count}
    </span>
  );
}

/** Shown instead of the verdict: the machine does not answer. */
export function Trouble({ words }: { words: string }): JSX.Element {
  return (
    <span
      className="jp-gw-Verdict jp-gw-mod-warning"
      role="img"
      title={words}
      aria-label={words}
    >
      <SeverityIcon severity="warning" />
    </span>
  );
}

export function SeverityIcon({
  severity
}: {
  severity: Severity;
}): JSX.Element {
  const shapes: Record<Severity, JSX.Element> = {
    error: <path d="M5 1h6l4 4v6l-4 4H5l-4-4V5zM5.5 5.5l5 5m0-5l-5 5" />,
    warning: <path d="M8 1.5L15 14.5H1zM8 6v4m0 1.6v1.2" />,
    info: <path d="M8 1a7 7 0 1 0 .01 0zM8 7v5M8 4v1.2" />
  };
  return (
    <svg className="jp-gw-Severity" viewBox="0 0 16 16" aria-hidden="true">
      {shapes[severity]}
    </svg>
  );
}

function severityWord(severity: Severity, trans: TranslationBundle): string {
  const words: Record<Severity, string> = {
    error: trans.__('Error'),
    warning: trans.__('Warning'),
    info: trans.__('Note')
  };
  return words[severity];
}
