import { spawnSync } from 'child_process';
import { cpSync, mkdtempSync, readFileSync, writeFileSync } from 'fs';
import { tmpdir } from 'os';
import { join } from 'path';

const ROOT = join(__dirname, '..');
const LOCALE = join(ROOT, '../workbench/locale');
const GERMAN = 'de_DE/LC_MESSAGES/gradient_workbench.po';

function run(command: string, folder = LOCALE): { code: number; text: string } {
  const program = join(ROOT, 'scripts/catalogues.mjs');
  const done = spawnSync(process.execPath, [program, command, folder]);
  return { code: done.status ?? -1, text: String(done.stderr) };
}

/** A copy of the catalogues, in which a text of the German one is replaced. */
function changed(from: string | RegExp, to: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'locale-'));
  cpSync(LOCALE, folder, { recursive: true });
  const path = join(folder, GERMAN);
  const text = readFileSync(path, 'utf8');
  expect(text).toMatch(from);
  writeFileSync(path, text.replace(from, to));
  return folder;
}

describe('the catalogues', () => {
  it('have every text, and no old one', () => {
    expect(run('check')).toEqual({ code: 0, text: '' });
  });

  it('miss a text without a translation', () => {
    const { code, text } = run('check', changed('"Anhalten"', '""'));
    expect([code, text]).toEqual([
      1,
      expect.stringContaining('not translated: "Pause"')
    ]);
  });

  it('have a text that is no longer used', () => {
    const { text } = run('check', changed('msgid "Pause"', 'msgid "Old"'));
    expect(text).toContain('not translated: "Pause"');
    expect(text).toContain('no longer used: "Old"');
  });

  it('have other placeholders', () => {
    const { text } = run('check', changed('Iterationen %1 bis %2', 'x %1'));
    expect(text).toContain('other placeholders: "Iterations %1 to %2"');
  });

  it('are updated without a loss', () => {
    const folder = changed('msgid "Pause"', 'msgid "Old"');
    expect(run('update', folder).code).toBe(0);
    const text = readFileSync(join(folder, GERMAN), 'utf8');
    expect(text).not.toContain('"Old"');
    expect(text).toContain('msgid "Pause"\nmsgstr ""');
    expect(text).toContain('msgid "Resume"\nmsgstr "Fortsetzen"');
  });
});
