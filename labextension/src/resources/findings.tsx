import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { IFinding, Severity } from './interfaces';

const ORDER: Severity[] = ['error', 'warning', 'info'];

/** What the doctor found, the worst first, each with its cure a click away. */
export function Findings(props: {
  findings: readonly IFinding[];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { findings, trans } = props;
  const sorted = [...findings].sort(
    (a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity)
  );
  return sorted.length === 0 ? null : (
    <ul className="jp-gw-Findings" aria-label={trans.__('Findings')}>
      {sorted.map(finding => (
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
              <dd className="jp-gw-Finding-cure">{finding.cure}</dd>
              <dt>{trans.__('source')}</dt>
              <dd>{finding.source}</dd>
            </dl>
          </details>
        </li>
      ))}
    </ul>
  );
}

/** For the head of a card: how many of the worst kind, or that there are none. */
export function Verdict(props: {
  findings: readonly IFinding[];
  trans: TranslationBundle;
}): JSX.Element {
  const { findings, trans } = props;
  const worst = ORDER.find(severity =>
    findings.some(one => one.severity === severity)
  );
  if (!worst) {
    const words = trans.__('nothing found wrong');
    return (
      <span
        className="jp-gw-Verdict jp-gw-mod-fine"
        role="img"
        title={words}
        aria-label={words}
      >
        ✓
      </span>
    );
  }
  const count = findings.filter(one => one.severity === worst).length;
  const words = `${severityWord(worst, trans)}: ${count}`;
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

function SeverityIcon({ severity }: { severity: Severity }): JSX.Element {
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
