import { nullTranslator } from '@jupyterlab/translation';
import { readFileSync, readdirSync } from 'fs';
import { join } from 'path';
import * as ts from 'typescript';

import { VmList } from '../src/cluster/vms';
import { ITranslate } from '../src/common/translate';
import { TimingFeed } from '../src/live/feed';
import { readSnapshot as readTimings } from '../src/live/protocol';
import { LiveFeed } from '../src/resources/livefeed';
import { knownIfSent, number } from '../src/schema/reader';
import { readSnapshot } from '../src/schema/snapshot';
import { loadOf } from '../src/topology/loads';
import { readGraph } from '../src/topology/read';
import { Verdicts } from '../src/topology/verdict';
import { branchTitle } from '../src/topology/words';
import { snapshot } from './fixtures';
import { machine } from './topology-fixtures';

/** A language in which every text is in guillemets. */
const QUOTED: ITranslate = {
  __: (text, ...values) =>
    `«${text.replace(/%(\d)/g, (_, at) => String(values[at - 1]))}»`
};

const SOURCE = join(__dirname, '../src');

/** Texts for developers, and those that JupyterLab shows untranslated. */
const NOT_FOR_USERS = [
  // The description of a plugin, as in JupyterLab.
  'Shows the resources of this machine and the cluster of the notebook in front.',
  'Draws the live timings of a training in the output of its notebook.',
  'Opens the live view of a notebook in a tab of its own.',
  'Adds the commands of the panel to palette, menu and toolbar.',
  'Lists clusters in the Running tab, with attach and stop.',
  'Shows the cluster of the active notebook in the status bar.',
  'Notifies of failures of a cluster while the panel is hidden.',
  'Draws links to evidence bundles and traces of profiles in outputs.',
  // The description of a token, as in JupyterLab.
  'The cluster of the active notebook and the resources that the panel of Gradient Workbench shows.',
  // The product's name, and what its settings are found by.
  'Gradient Workbench',
  // Code, and constants of the kernel and the server.
  '%load_ext workbench',
  '%reload_ext workbench\n%cluster attach --name …',
  '%reload_ext workbench\n%timings replay …',
  'nccl topology file',
  // Constants of CSS and SVG.
  'system-ui, sans-serif',
  'xMidYMid meet'
];

function filesIn(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap(entry => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? filesIn(path) : [path];
  });
}

/** Whether a node is an argument of a translation, or of a message on the console. */
function isHandled(node: ts.Node): boolean {
  for (let at = node.parent; at && !ts.isBlock(at); at = at.parent) {
    const call = ts.isCallExpression(at) ? at.expression.getText() : '';
    if (/\._(_|n)$/.test(call) || call.startsWith('console.')) {
      return true;
    }
  }
  return false;
}

/** The words of a literal that a user would read; empty for names and drawing commands. */
function wordsOf(node: ts.Node): string {
  if (ts.isJsxText(node)) {
    return /[a-z]{2}/i.test(node.text) ? node.text.trim() : '';
  }
  const text = ts.isTemplateExpression(node)
    ? [node.head, ...node.templateSpans.map(span => span.literal)]
        .map(part => part.text)
        .join('…')
    : ts.isStringLiteralLike(node)
      ? node.text
      : '';
  const isStyle = /jp-|gradient\(|^[.#[]/.test(text);
  return !isStyle && /[a-z]{2,} [a-z…%]{2,}/i.test(text) ? text : '';
}

describe('texts', () => {
  it('are all translated where they are written', () => {
    const missing: string[] = [];
    for (const path of filesIn(SOURCE).filter(one =>
      /(?<!\.d)\.tsx?$/.test(one)
    )) {
      const kind = path.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS;
      const file = ts.createSourceFile(
        path,
        readFileSync(path, 'utf8'),
        ts.ScriptTarget.Latest,
        true,
        kind
      );
      const visit = (node: ts.Node): void => {
        const words = wordsOf(node);
        if (words && !isHandled(node) && !NOT_FOR_USERS.includes(words)) {
          missing.push(`${path.slice(SOURCE.length + 1)}: ${words}`);
        }
        ts.forEachChild(node, visit);
      };
      visit(file);
    }
    expect(missing).toEqual([]);
  });

  it('have placeholders, which no value is pasted into', () => {
    const pasted = filesIn(SOURCE)
      .map(path => [path, readFileSync(path, 'utf8')])
      .filter(([, code]) => /trans\w*\.__\(\s*(`|[^)]*?' *\+)/.test(code))
      .map(([path]) => path);
    expect(pasted).toEqual([]);
  });
});

describe('reasons from the data', () => {
  it('of a field that a server does not send', () => {
    expect(knownIfSent(number)(undefined, 'a', QUOTED)).toEqual({
      unknown: '«not reported by this server»'
    });
  });

  it('of a message that cannot be read', () => {
    const wrong = { ...snapshot(1), gpus: 'none' };
    expect(() => readSnapshot(wrong, 'snapshot', QUOTED)).toThrow(
      '«snapshot.gpus: expected «a list», found "none"»'
    );
    expect(() => readTimings({ version: 1 }, QUOTED)).toThrow(/^«Timings of/);
    expect(() => new TimingFeed(QUOTED).loadSnapshot(null)).toThrow(/^«/);
  });

  it('of missing iterations', () => {
    const { details, status } = new TimingFeed(QUOTED);
    const reason = { unknown: '«no iteration has arrived yet»' };
    expect(details.collectives).toEqual(reason);
    expect(status.summary.busbw_gbps).toEqual(reason);
  });

  it('of a VM that sends nothing', () => {
    jest.useFakeTimers();
    const vms = new VmList(QUOTED);
    vms.hearSamples({ vm2: { unknown: 'no' } });
    const { snapshot: known, trouble } = vms.entries[0].machine!;
    expect([known, trouble]).toEqual([
      { unknown: '«the kernel has not described it yet»' },
      'no'
    ]);
    jest.advanceTimersByTime(6000);
    expect(vms.entries[0].machine!.trouble).toMatch(/^«the kernel has sent/);
    vms.dispose();
    jest.useRealTimers();
  });

  it('of a feed that is silent', () => {
    jest.useFakeTimers();
    const socket = { onmessage: null, onclose: null, close: () => undefined };
    const feed = new LiveFeed({ connect: () => socket, trans: QUOTED });
    feed.start();
    jest.advanceTimersByTime(10_500);
    expect(feed.state).toHaveProperty('reason', expect.stringMatching(/^«the/));
    feed.dispose();
    jest.useRealTimers();
  });

  it('of loads and distances', () => {
    const given = machine('a100-40c-pair');
    const graph = readGraph(given, undefined, QUOTED);
    const gpu = graph.devices.find(one => one.kind === 'gpu')!;
    expect(loadOf(gpu, 'nvlink', null, graph, QUOTED).share).toEqual({
      unknown: '«no live data»'
    });
    const empty = { gpus: [], nics: [] };
    expect(loadOf(gpu, 'nvlink', empty, graph, QUOTED).share).toEqual({
      unknown: '«this machine does not report it»'
    });
    const verdicts = new Verdicts(given, graph, QUOTED);
    expect(verdicts.distance(gpu, { ...gpu, address: null })).toEqual({
      unknown: '«the snapshot has no distance between them»'
    });
  });

  it('of a NUMA node that nobody reports', () => {
    const graph = readGraph(machine('a100-4c'));
    const [root] = graph.roots;
    const title = branchTitle(
      { ...root, kind: 'node', number: { unknown: '' } },
      graph,
      nullTranslator.load('')
    );
    expect(title).toContain('reports a NUMA node');
  });
});
