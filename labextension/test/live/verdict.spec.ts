import { IVerdict } from '../../src/live/causes';
import { TimingsRenderer } from '../../src/live/renderer';
import { installBrowser } from './browser';
import { NotebookPage, text } from './notebook';
import { message, rows, snapshot } from './rows';

const browser = installBrowser();

function verdict(more: Partial<IVerdict> = {}): IVerdict {
  const saving = { saving_us: 7200, saving_share: 0.31, bound: true };
  return {
    text: '23.4 ms per iteration; first cause: waiting for rank 1 (up to 7.2 ms)',
    cell: 3,
    first_iteration: 946,
    last_iteration: 1009,
    causes: [
      {
        ...saving,
        name: 'waiting for rank 1',
        evidence: 'its <data> takes longer',
        change: 'check its loader',
        uncertainty: '6.1 to 8.0 ms',
        measure: ''
      },
      {
        ...saving,
        name: 'communication that is not timed',
        evidence: 'ranks communicate by other means',
        change: 'build Horovod',
        saving_us: { unknown: 'it cannot be predicted' },
        saving_share: { unknown: 'it cannot be predicted' },
        uncertainty: '',
        measure: 'cluster.calibrate()'
      }
    ],
    ...more
  };
}

describe('the verdict', () => {
  let page: NotebookPage;
  let output: TimingsRenderer;
  beforeEach(() => (page = new NotebookPage(browser)));
  afterEach(() => output.dispose());

  const click = (label: string): void => {
    const all = [...output.node.querySelectorAll('button')];
    all.find(one => one.textContent === label)!.click();
  };
  const causes = (): string[] =>
    [...output.node.querySelectorAll('.jp-gw-Live-cause')].map(
      one => one.textContent ?? ''
    );
  const panel = (): HTMLElement =>
    output.node.querySelector<HTMLElement>('.jp-gw-Live-causes')!;
  const line = (): string => text(output.node, '.jp-gw-Live-verdictText');

  it('is one line once the cell has ended, and goes when the next one trains', () => {
    output = page.open(snapshot(1, rows(0, 10)));
    expect(line()).toBe('');
    const ended = { state: 'ended', verdict: verdict() };
    page.kernel.send(...message('state', 2, [], ended));
    expect(line()).toBe(`Verdict: ${verdict().text}.`);
    page.kernel.send(...message('delta', 3, rows(10, 11), { verdict: null }));
    expect(line()).toBe('');
  });

  it('has causes that the kernel names when it is asked, while it trains', async () => {
    output = page.open(snapshot(1, rows(0, 10)));
    expect(panel().hidden).toBe(true);
    click('Explain');
    await new Promise(done => setTimeout(done));
    expect(page.kernel.asked).toContainEqual({ type: 'explain' });
    expect(text(panel(), '.jp-gw-Live-explainState')).toBe(
      'Waiting for the kernel.'
    );
    page.kernel.send({
      type: 'answer',
      run: 0,
      asked: { type: 'explain' },
      explanation: verdict()
    });
    const [first, second] = causes();
    expect(first).toContain('saves up to 7.20 ms (31 %)');
    expect(first).toContain('its <data> takes longer');
    expect(first).toContain('Change check its loader');
    expect(second).toContain('saving unknown');
    expect(second).toContain('To measure cluster.calibrate()');
    expect(panel().textContent).toContain('iterations 946 to 1,009');
    const explain = output.node.querySelector('[aria-controls]')!;
    expect(explain.getAttribute('aria-controls')).toBe(panel().id);
    expect(explain.getAttribute('aria-expanded')).toBe('true');
    click('Close');
    expect(panel().hidden).toBe(true);
    expect(document.activeElement).toBe(explain);
  });

  it('has the text of an error instead of causes', () => {
    output = page.open(snapshot(1, rows(0, 10)));
    click('Explain');
    const reason = 'Nothing to explain: the last cell was not recorded.';
    page.kernel.send({
      type: 'answer',
      run: 0,
      asked: { type: 'explain' },
      explanation: { unknown: reason }
    });
    expect(text(panel(), '.jp-gw-Live-explainState')).toBe(reason);
    expect(causes()).toEqual([]);
  });

  it('says so if nothing is worth a change', () => {
    const ended = { state: 'ended', verdict: verdict({ causes: [] }) };
    output = page.open(snapshot(1, rows(0, 10), ended));
    click('Explain');
    expect(text(panel(), '.jp-gw-Live-explainState')).toContain(
      'Nothing visible'
    );
  });

  it('is in a saved notebook, whose kernel is gone', () => {
    page.session.session = null;
    const ended = { state: 'ended', verdict: verdict() };
    output = page.open(snapshot(1, rows(0, 10), ended));
    click('Explain');
    expect(causes()).toHaveLength(2);
  });

  it('is not invented where there is neither verdict nor kernel', () => {
    page.session.session = null;
    output = page.open(snapshot(1, rows(0, 10), { state: 'ended' }));
    click('Explain');
    expect(text(panel(), '.jp-gw-Live-explainState')).toContain(
      'No kernel answers'
    );
  });

  it('replaces an older explanation that is still open', () => {
    output = page.open(snapshot(1, rows(0, 10)));
    click('Explain');
    page.kernel.send({
      type: 'answer',
      run: 0,
      asked: { type: 'explain' },
      explanation: verdict({ last_iteration: 100, causes: [] })
    });
    expect(causes()).toHaveLength(0);
    const ended = { state: 'ended', verdict: verdict() };
    page.kernel.send(...message('state', 2, [], ended));
    expect(causes()).toHaveLength(2);
  });
});
