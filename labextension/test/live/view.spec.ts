import { ICollective } from '../../src/live/protocol';
import { TimingsRenderer } from '../../src/live/renderer';
import { installBrowser } from './browser';
import { HUB, NotebookPage, text, title } from './notebook';
import { details, message, row, rows, snapshot } from './rows';

const browser = installBrowser();

function button(node: HTMLElement, label: string): HTMLButtonElement {
  const all = [...node.querySelectorAll('button')];
  return all.find(one => one.textContent === label)!;
}

describe('the view', () => {
  let page: NotebookPage;
  beforeEach(() => (page = new NotebookPage(browser)));

  it('says what it waits for, then draws with the first iteration', () => {
    const waiting = { state: 'waiting', message: 'Waiting for rank 1.' };
    const output = page.open(snapshot(0, [], waiting));
    expect(text(output.node, '.jp-gw-Live-waiting')).toBe(
      'Waiting for rank 1.'
    );
    expect(
      output.node.querySelector<HTMLElement>('.jp-gw-Live-body')?.hidden
    ).toBe(true);
    page.kernel.send(...message('window', 1, rows(0, 1)));
    browser.frame();
    expect(
      output.node.querySelector<HTMLElement>('.jp-gw-Live-body')?.hidden
    ).toBe(false);
    expect(title(output.node)).toBe('Iteration 0 · latest');
    output.dispose();
  });

  it('shows figures with their units and unknown ones as a dash with the reason', () => {
    const output = page.open(snapshot(1, rows(0, 10)));
    const keys = text(output.node, '.jp-gw-Live-keyFigures');
    expect(keys).toContain('24.3 ms');
    expect(keys).toContain('25 %');
    expect(keys).toContain('rank 1 +4.10 ms');
    const dash = output.node.querySelector<HTMLElement>(
      '.jp-gw-Live-keyFigures .jp-gw-Live-unknown'
    )!;
    expect(dash.textContent).toBe('–');
    expect(dash.tabIndex).toBe(0);
    expect(dash.getAttribute('aria-label')).toBe('nothing was timed yet');
    expect(dash.dataset.reason).toBe('nothing was timed yet');
    output.dispose();
  });

  it.each([
    ['following', 'Pause'],
    ['paused', 'Follow']
  ])('compares with a stored run while %s', async (mode, other) => {
    const output = page.open(snapshot(1, rows(0, 10)));
    browser.frame();
    if (mode === 'paused') {
      const pause =
        output.node.querySelector<HTMLElement>('.jp-gw-Live-button')!;
      pause.click();
      browser.frame();
    }
    expect(output.node.textContent).toContain(other);
    const label = [...output.node.querySelectorAll('label')].find(one =>
      one.textContent!.startsWith('Compare with')
    )!;
    const choice = label.querySelector('select')!;
    const key = output.node.querySelector<HTMLElement>('.jp-gw-Live-earlier')!;
    const drawn = async (): Promise<void> => {
      browser.frame();
      await new Promise(done => setTimeout(done)); // uPlot draws a little later
    };
    const answer = (more: Record<string, unknown>): Promise<void> => {
      const asked = page.kernel.asked[page.kernel.asked.length - 1];
      page.kernel.send({ type: 'answer', run: 0, asked, ...more });
      return drawn();
    };
    const choose = async (name: string): Promise<void> => {
      choice.value = name;
      choice.dispatchEvent(new Event('change'));
      await drawn();
    };
    expect(key.hidden).toBe(true);
    choice.dispatchEvent(new Event('focus'));
    await new Promise(done => setTimeout(done));
    await answer({ runs: ['slower', 'gone'] });
    expect(choice.textContent).toBe('Noneslowergone');
    await choose('slower');
    expect(page.kernel.asked.pop()).toEqual({
      type: 'earlier',
      name: 'slower'
    });
    page.kernel.asked.push({ type: 'earlier', name: 'slower' });
    expect(key.textContent).toBe('Waiting for the kernel.');
    const numbers = (): number[] => browser.texts.map(Number);
    expect(Math.max(...numbers().filter(one => one < 200))).toBeLessThan(50);
    const earlier = {
      name: 'slower',
      iterations: 400,
      each: 1,
      times_us: [null, ...Array.from({ length: 399 }, () => 90_000)],
      mean_us: 90_000
    };
    await answer({ earlier });
    expect(numbers()).toContain(80); // the axis includes its times
    expect(key.textContent).toBe(
      'Iteration time of slower: mean 90.0 ms, iterations 0 to 399'
    );
    await choose('gone');
    await answer({ earlier: { unknown: 'there is no such run' } });
    expect(key.textContent).toBe('there is no such run');
    await choose('');
    expect(key.hidden).toBe(true);
    output.dispose();
  });

  it('links the trace of the latest profile', () => {
    const profile_file = { run: 'first', file: 'profile-1.json.gz' };
    const output = page.open(snapshot(1, rows(0, 10)));
    const link = output.node.querySelector<HTMLAnchorElement>(
      '.jp-gw-Live-profileLink'
    )!;
    expect(link.hidden).toBe(true);
    const [content, buffers] = message('window', 2, rows(0, 10));
    page.kernel.send({ ...content, profile_file }, buffers);
    expect(link.hidden).toBe(false);
    expect(link.href).toBe(
      `${HUB}workbench/api/runs/first/files/profile-1.json.gz`
    );
    output.dispose();
  });

  it('draws once per frame, however many messages came', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    for (let seq = 5; seq < 15; seq++) {
      page.kernel.send(...message('delta', seq, rows(5 + seq, 6 + seq)));
    }
    expect(browser.frame()).toBeLessThanOrEqual(4); // one of ours, one per uPlot
    output.dispose();
  });

  it('follows with bars and text a little later, up to the newest iteration', async () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    browser.frame();
    for (let seq = 5; seq < 9; seq++) {
      page.kernel.send(...message('delta', seq, rows(5 + seq, 6 + seq)));
      browser.frame();
    }
    expect(title(output.node)).not.toBe('Iteration 13 · latest');
    await new Promise(done => setTimeout(done, 600));
    browser.frame();
    expect(title(output.node)).toBe('Iteration 13 · latest');
    output.dispose();
  });

  it('does not draw while it cannot be seen, and catches up after', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    browser.frame();
    browser.show(false);
    page.kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(title(output.node)).toBe('Iteration 9 · latest');
    browser.show(true);
    browser.frame();
    expect(title(output.node)).toBe('Iteration 11 · latest');
    output.dispose();
  });

  it('stands still while paused, and collects', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const pause = output.node.querySelector<HTMLButtonElement>(
      '.jp-gw-Live-button[aria-pressed]'
    )!;
    pause.click();
    page.kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(title(output.node)).toContain('Iteration 9');
    expect(pause.getAttribute('aria-pressed')).toBe('true');
    pause.click();
    browser.frame();
    expect(title(output.node)).toContain('Iteration 11');
    output.dispose();
  });

  it('reads one iteration by the arrow keys', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const charts =
      output.node.querySelector<HTMLElement>('.jp-gw-Live-charts')!;
    const press = (key: string): boolean =>
      charts.dispatchEvent(
        new KeyboardEvent('keydown', { key, cancelable: true })
      );
    expect(press('ArrowLeft')).toBe(false); // taken: Lab must not move to another cell
    expect(press('x')).toBe(true);
    output.dispose();
  });

  it('shows the figures of the rank that is chosen', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const [select] = output.node.querySelectorAll('select');
    expect([...select.options].map(option => option.text)).toEqual([
      'All (mean)',
      '0 · vm1',
      '1 · vm2'
    ]);
    select.value = '1';
    select.dispatchEvent(new Event('change'));
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-table th')).toBe('Rank 1');
    output.dispose();
  });

  it('says that the run has ended', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const ended = {
      state: 'ended',
      message: 'The run ended after 10 iterations.'
    };
    page.kernel.send(...message('window', 5, rows(0, 10), ended));
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-state')).toBe(
      'The run ended after 10 iterations.'
    );
    output.dispose();
  });

  it('has nothing of the data as HTML', () => {
    const hostile = '<img src=x onerror=alert(1)>';
    const output = page.open(snapshot(1, rows(0, 2), { message: hostile }));
    expect(output.node.querySelector('img')).toBeNull();
    expect(text(output.node, '.jp-gw-Live-state')).toBe(hostile);
    output.dispose();
  });

  describe('a selection', () => {
    let output: TimingsRenderer;
    const press = (key: string): void => {
      const charts =
        output.node.querySelector<HTMLElement>('.jp-gw-Live-charts')!;
      charts.dispatchEvent(
        new KeyboardEvent('keydown', { key, cancelable: true, bubbles: true })
      );
      browser.frame();
    };
    const selected = (): string => text(output.node, '.jp-gw-Live-statusLine');
    const names = (): string[] =>
      [...output.node.querySelectorAll('.jp-gw-Live-collectives tbody th')].map(
        name => name.textContent!
      );

    beforeEach(() => {
      const slow = { iteration_us: 50000, exposed_us: 36000 };
      const late = [row(39, 0, slow), row(39, 1, slow)];
      output = page.open(snapshot(4, [...rows(0, 39), ...late]));
    });
    afterEach(() => output.dispose());

    it('is answered for at once from what the page holds', () => {
      press('+');
      expect(text(output.node, '.jp-gw-Live-iteration')).toMatch(/^\d+–39/);
      expect(title(output.node)).toMatch(/^Mean of iterations \d+ to 39$/);
      expect(text(output.node, '.jp-gw-Live-keyFigures')).toContain('22.7 ms');
      expect(selected()).toContain('until the kernel answers');
    });

    it('is asked of the kernel, whose answer then stands', async () => {
      press('+');
      await new Promise(done => setTimeout(done));
      const [asked] = page.kernel.asked;
      expect(asked).toMatchObject({ type: 'details', last: 39 });
      const found = details(asked.first, asked.last);
      found.summary.iteration_us = 77000;
      page.kernel.send({ type: 'answer', run: 0, asked, details: found });
      browser.frame();
      expect(text(output.node, '.jp-gw-Live-keyFigures')).toContain('77.0 ms');
      expect(selected()).not.toContain('page');
      expect(selected()).toContain('Rank 1 late since');
    });

    it('is not mistaken for another that was asked for before', async () => {
      press('+');
      await new Promise(done => setTimeout(done));
      const asked = { type: 'details', first: 1, last: 2 };
      page.kernel.send({
        type: 'answer',
        run: 0,
        asked,
        details: details(1, 2)
      });
      browser.frame();
      expect(selected()).toContain('until the kernel answers');
    });

    it('says what is not known where the kernel is gone', () => {
      page.session.session = null;
      page.session.kernelChanged.emit(undefined);
      press('+');
      expect(selected()).toContain('no kernel answers');
      expect(text(output.node, '.jp-gw-Live-none')).toContain(
        'Unknown for these iterations'
      );
      const table = output.node.querySelector<HTMLElement>(
        'table[aria-label="Collectives"]'
      );
      expect(table!.hidden).toBe(true);
    });

    it('is left by escape, by its button, and by follow', () => {
      for (const leave of [
        () => press('Escape'),
        () => button(output.node, 'Clear (Esc)').click(),
        () => button(output.node, 'Follow').click()
      ]) {
        press('+');
        expect(selected()).toContain('Iterations');
        leave();
        browser.frame();
        expect(selected()).not.toContain('Iterations');
        expect(names()).toEqual(['head.weight', 'body.weight']);
      }
    });

    it('is that of a late rank, by a click', () => {
      expect(selected()).toContain(
        'Rank 1 late since iteration 0: data takes 4.10 ms longer; the others wait 2.50 ms.'
      );
      button(output.node, 'Show').click();
      browser.frame();
      expect(selected()).toContain('Iterations 0 to 39');
    });
  });

  it('shows the stages of pipelines, and the groups of their messages', () => {
    const given = snapshot(1, rows(0, 10));
    const [first] = given.details.collectives as ICollective[];
    const message = { ...first, kind: 'send', group: 'pp', peer: 2 };
    const unknown = { unknown: 'not counted' };
    const stage = { group: 'pp', stage: 0, rank: 1, idle_us: 24300 };
    const figures = { idle_share: 0.25, ideal_share: unknown };
    given.details.collectives = [message];
    given.details.stages = [{ ...stage, ...figures }];
    const output = page.open(given);
    const table = '[aria-label="Pipeline stages"]';
    expect(text(output.node, `${table} tbody`)).toBe(
      'pp · stage 0124.3 ms25 %–'
    );
    expect(text(output.node, '[aria-label="Collectives"] tbody td')).toContain(
      'send · with rank 2 · pp'
    );
    output.dispose();
  });

  it('shows no stages without messages between ranks', () => {
    const output = page.open(snapshot(1, rows(0, 10)));
    const table = output.node.querySelector('[aria-label="Pipeline stages"]')!;
    expect(table.parentElement!.hidden).toBe(true);
    output.dispose();
  });

  it('sorts the collectives by a click on a name, both ways', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const table = output.node.querySelector('table[aria-label="Collectives"]')!;
    const names = (): string[] =>
      [...table.querySelectorAll('tbody th')].map(one => one.textContent!);
    const heads = [...table.querySelectorAll('thead th')];
    const sorted = (): (string | undefined)[] =>
      heads
        .filter(one => one.getAttribute('aria-sort') !== 'none')
        .map(one => `${one.textContent} ${one.getAttribute('aria-sort')}`);
    expect(names()).toEqual(['head.weight', 'body.weight']);
    expect(sorted()).toEqual(['Of exposed descending']);
    const size = heads[2].querySelector('button')!;
    size.click();
    expect(names()).toEqual(['body.weight', 'head.weight']);
    expect(sorted()).toEqual(['Size descending']);
    size.click();
    expect(names()).toEqual(['head.weight', 'body.weight']);
    expect(sorted()).toEqual(['Size ascending']);
    heads[0].querySelector('button')!.click();
    expect(names()).toEqual(['body.weight', 'head.weight']);
    output.dispose();
  });

  it('stacks its columns in a narrow cell', () => {
    const output = page.open(snapshot(1, rows(0, 2)));
    const main = output.node.querySelector('.jp-gw-Live-main')!;
    expect(main.classList.contains('jp-gw-Live-narrow')).toBe(false);
    browser.resize(500);
    expect(main.classList.contains('jp-gw-Live-narrow')).toBe(true);
    browser.resize(900);
    expect(main.classList.contains('jp-gw-Live-narrow')).toBe(false);
    output.dispose();
  });
});
