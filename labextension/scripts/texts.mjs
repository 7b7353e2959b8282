// Finds every text of the front end: the literal arguments of `__`, `_n` and `_p` in src/.
//
// The settings of schema/ are not among them: JupyterLab's server translates those, only from
// the language pack itself.
import { readFileSync, readdirSync } from 'node:fs';
import { join, relative } from 'node:path';
import ts from 'typescript';

/** Which arguments are the text, its plural and its context. */
const ARGUMENTS = new Map([
  ['__', [0]],
  ['_n', [0, 1]],
  ['_p', [1, null, 0]]
]);

/**
 * Return the texts as objects with `context`, `text`, `plural` and `places`, by file.
 *
 * @throws if a text is not a literal, which no translator would see.
 */
export function extract(root) {
  const found = new Map();
  for (const path of filesIn(join(root, 'src'))) {
    const place = relative(root, path);
    for (const [text, plural, context] of textsOf(path)) {
      const key = JSON.stringify([context, text]);
      const entry = found.get(key) ?? { context, text, plural, places: [] };
      entry.plural ??= plural;
      if (!entry.places.includes(place)) {
        entry.places.push(place);
      }
      found.set(key, entry);
    }
  }
  return [...found.values()];
}

function textsOf(path) {
  const kind = path.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS;
  const code = readFileSync(path, 'utf8');
  const latest = ts.ScriptTarget.Latest;
  const file = ts.createSourceFile(path, code, latest, true, kind);
  const found = [];
  const visit = node => {
    const name = ts.isCallExpression(node) && node.expression.name?.text;
    const places = ARGUMENTS.get(name);
    if (places) {
      const [texts, [plural = null] = [], [context = null] = []] = places.map(
        at => (at === null ? [] : literalsOf(node.arguments[at], path))
      );
      found.push(...texts.map(text => [text, plural, context]));
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return found;
}

/** The texts that an argument can have: a literal, or a choice between literals. */
function literalsOf(node, path) {
  if (ts.isStringLiteralLike(node)) {
    return [node.text];
  }
  if (ts.isParenthesizedExpression(node)) {
    return literalsOf(node.expression, path);
  }
  if (ts.isConditionalExpression(node)) {
    return [node.whenTrue, node.whenFalse].flatMap(one =>
      literalsOf(one, path)
    );
  }
  throw new Error(`${path}: ${node.getText()} is not a literal.`);
}

function filesIn(folder) {
  const entries = readdirSync(folder, { withFileTypes: true });
  return entries
    .sort((one, other) => (one.name < other.name ? -1 : 1))
    .flatMap(entry => {
      const path = join(folder, entry.name);
      return entry.isDirectory()
        ? filesIn(path)
        : /(?<!\.d)\.tsx?$/.test(path)
          ? [path]
          : [];
    });
}
