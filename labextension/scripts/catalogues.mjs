// The catalogues of translations: workbench/locale/<language>/LC_MESSAGES/gradient_workbench.po.
//
//   node scripts/catalogues.mjs update   adds new texts, untranslated, and removes old ones
//   node scripts/catalogues.mjs check    fails if a text is missing, old or wrongly translated
//   node scripts/catalogues.mjs build    writes the JSON that JupyterLab reads
//
// After the command another folder than workbench/locale can be given. JupyterLab finds it by
// the entry point `jupyterlab.locale`, for the languages of the language packs that users install.
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { extract } from './texts.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');
const DOMAIN = 'gradient_workbench';
const PLURAL_FORMS = 'nplurals=2; plural=(n != 1);';

/** How a text is identified, as by gettext. */
const keyOf = ({ context, text }) =>
  context ? `${context}\u0004${text}` : text;

const quote = text => JSON.stringify(text);

/** Read the entries of a catalogue in the form in which `write` writes them. */
function read(path) {
  const entries = new Map();
  for (const block of readFileSync(path, 'utf8').split(/\n\n+/)) {
    const entry = { context: null, text: '', plural: null, forms: [] };
    for (const line of block.split('\n')) {
      const [, word, form, value] =
        /^(msg\w+)(?:\[(\d)\])? (".*")$/.exec(line) ?? [];
      const given = value && JSON.parse(value);
      if (word === 'msgctxt') {
        entry.context = given;
      } else if (word === 'msgid') {
        entry.text = given;
      } else if (word === 'msgid_plural') {
        entry.plural = given;
      } else if (word === 'msgstr') {
        entry.forms[Number(form ?? 0)] = given;
      }
    }
    if (entry.text) {
      entries.set(keyOf(entry), entry);
    }
  }
  return entries;
}

function write(path, language, entries) {
  const head = [
    `# Texts of the front end. After a change of texts: jlpm translations.`,
    'msgid ""',
    'msgstr ""',
    ...[
      `Language: ${language}`,
      'Content-Type: text/plain; charset=UTF-8',
      `Plural-Forms: ${PLURAL_FORMS}`
    ].map(line => quote(`${line}\n`))
  ];
  const blocks = entries.map(({ context, text, plural, forms, places }) => [
    ...places.map(place => `#: ${place}`),
    ...(context ? [`msgctxt ${quote(context)}`] : []),
    `msgid ${quote(text)}`,
    ...(plural === null
      ? [`msgstr ${quote(forms[0] ?? '')}`]
      : [
          `msgid_plural ${quote(plural)}`,
          ...[0, 1].map(form => `msgstr[${form}] ${quote(forms[form] ?? '')}`)
        ])
  ]);
  const parts = [head, ...blocks].map(lines => lines.join('\n'));
  writeFileSync(path, `${parts.join('\n\n')}\n`);
}

const placeholders = text => (text.match(/%\d/g) ?? []).sort().join(' ');

/** What is wrong with a catalogue, a line for each text. */
function faults(known, texts) {
  const found = [];
  for (const text of texts) {
    const entry = known.get(keyOf(text));
    const forms = [text.text, ...(text.plural === null ? [] : [text.plural])];
    if (!entry || forms.some((_, form) => !entry.forms[form])) {
      found.push(`not translated: ${quote(text.text)}`);
    } else if (entry.plural !== text.plural) {
      found.push(`another plural: ${quote(text.text)}`);
    } else {
      const wrong = forms.filter(
        (form, at) => placeholders(form) !== placeholders(entry.forms[at])
      );
      found.push(...wrong.map(one => `other placeholders: ${quote(one)}`));
    }
  }
  const used = new Set(texts.map(keyOf));
  const old = [...known.keys()].filter(key => !used.has(key));
  return [...found, ...old.map(key => `no longer used: ${quote(key)}`)];
}

function build(path, language, entries) {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json')));
  const head = {
    domain: DOMAIN,
    version,
    // as JupyterLab's front end compares it
    language: language.replace('_', '-'),
    plural_forms: PLURAL_FORMS
  };
  const texts = [...entries].filter(([, { forms }]) => forms[0]);
  const data = Object.fromEntries([
    ['', head],
    ...texts.map(([key, { forms }]) => [key, forms])
  ]);
  writeFileSync(path.replace(/po$/, 'json'), JSON.stringify(data));
}

const [command, folder = join(ROOT, '../workbench/locale')] =
  process.argv.slice(2);
if (!['update', 'check', 'build'].includes(command)) {
  console.error(`${command}: no such command. Write update, check or build.`);
  process.exit(2);
}
for (const language of readdirSync(folder)) {
  const path = join(folder, language, 'LC_MESSAGES', `${DOMAIN}.po`);
  const known = read(path);
  if (command === 'build') {
    build(path, language, known);
    continue;
  }
  const texts = extract(ROOT);
  if (command === 'update') {
    const merged = texts.map(text => {
      const forms = known.get(keyOf(text))?.forms ?? [];
      return { ...text, forms };
    });
    write(path, language, merged);
    console.log(faults(read(path), texts).join('\n'));
  } else {
    const found = faults(known, texts);
    if (found.length > 0) {
      console.error([path, ...found].join('\n  '));
      process.exitCode = 1;
    }
  }
}
