import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { CopyButton } from '../common/copy';
import { More, useSome } from '../common/some';
import { IFinding, Severity } from '../schema/findings';

/** So many are listed at once. */
const MOST = 20;

const ORDER: Severity[] = ['error', 'warning', 'info'];

/** What the doctor found, the worst first, each with its cure a click away. */
export function Findings(props: {
  findings: readonly IFinding[];
  /** What they are about. */
  label: string;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { findings, label, trans } = props;
  const sorted = [...findings].sort(
    (a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity)
  );
  const some = useSome(sorted, MOST);
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
              <dt>{trans.__('why')}</dt>
              <dd>{finding.why}</dd>
              <dt>{trans.__('cure')}</dt>
              <dd className="jp-gw-Finding-cure">
                <Cure text={finding.cure} trans={trans} />
              </dd>
              <dt>{trans.__('source')}</dt>
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

/** A cure, its settings and commands each with a button that copies it. */
function Cure(props: { text: string; trans: TranslationBundle }): JSX.Element {
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

/** A text in parts: what is to be typed is between backticks, or is one setting alone. */
function parts(text: string): { words: string; exact: boolean }[] {
  if (/^[A-Z][A-Z0-9_]*=\S+$/.test(text)) {
    return [{ words: text, exact: true }];
  }
  return text
    .split('`')
    .map((words, index) => ({ words, exact: index % 2 === 1 }))
    .filter(part => part.words);
}

/** For the head of a card: how many of the worst kind, or that there are none. */
export function Verdict(props: {
  findings: readonly IFinding[];
  /** Whether only a file describes the machine. */
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

/** In place of the verdict: that a machine does not answer. */
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
