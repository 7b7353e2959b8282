/** The doctor's findings on a machine, and the content of a file. */
import { Infer, list, oneOf, record, string } from './reader';
import { readSnapshot } from './snapshot';

const severity = oneOf('error', 'warning', 'info');

const finding = record({
  rule: string,
  severity,
  subject: string,
  evidence: string,
  why: string,
  fix: string,
  source: string
});

export const readFindings = list(finding);

/** The server's answer to a request for its findings. */
export const readFindingsAnswer = record({ findings: readFindings });

/** The server's answer to the text of a file: a topology or a snapshot. */
export const readFileAnswer = record({
  name: string,
  snapshot: readSnapshot,
  findings: readFindings
});

export type Severity = Infer<typeof severity>;
export type IFinding = Infer<typeof finding>;
export type IFileAnswer = Infer<typeof readFileAnswer>;
