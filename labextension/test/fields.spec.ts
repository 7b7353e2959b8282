import { nullTranslator } from '@jupyterlab/translation';

import { EMPTY, problemsOf } from '../src/cluster/fields';

const trans = nullTranslator.load('');

describe('the fields of a start', () => {
  it.each([
    ['90', true],
    ['1h30m', true],
    [' .5 h 30 min ', true],
    ['500ms', true],
    ['1 30', false],
    ['1h30', false],
    ['soon', false],
    ['1'.repeat(30) + 'x', false],
    ['1'.repeat(100_000), false]
  ])('check the time of case %# as the kernel does', (keep, isValid) => {
    const start = performance.now();
    const { keep: problem } = problemsOf({ ...EMPTY, keep }, trans);
    expect(problem === undefined).toBe(isValid);
    expect(performance.now() - start).toBeLessThan(1000);
  });
});
