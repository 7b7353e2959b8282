/* eslint-disable @typescript-eslint/no-explicit-any -- fakes are parts of what they stand for */
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { MIME_TYPE } from '../../src/live/protocol';
import { ISession, TimingsRenderer } from '../../src/live/renderer';
import { ENGLISH } from '../../src/live/text';
import factory from '../../src/live/widget';
import { installBrowser } from './browser';
import { bundle, details, message, row, rows, snapshot } from './rows';

const browser = installBrowser();

/** A kernel as far as comms go: hands messages to the comm of their id. */
class Kernel {
  readonly statusChanged = new Signal<this, string>(this);
  readonly comms = new Map<string, any>();
  isDisposed = false;
  status = 'busy';
  handleComms = true;
  supportsSubshells = true;
  readonly info = Promise.resolve({});
  /** What pages have asked for. */
  readonly asked: any[] = [];

  createComm(_: string, id: string): any {
    if (!this.handleComms || this.comms.has(id)) {
      throw new Error('Comms are disabled on this kernel connection');
    }
    const comm = {
      isDisposed: false,
      subshellStarted: Promise.resolve(),
      send: (request: unknown): void => void this.asked.push(request),
      onMsg: (_: unknown): void => undefined,
      dispose: (): void => {
        comm.isDisposed = true;
        this.comms.delete(id);
      }
    };
    this.comms.set(id, comm);
    return comm;
  }

  send(content: unknown, buffers: unknown[] = []): void {
    const data = { method: 'custom', content };
    this.comms.get('timings-abc')?.onMsg({ content: { data }, buffers });
  }

  /** As JupyterLab does: comms are disposed, and nobody is told. */
  restart(): void {
    [...this.comms.values()].forEach(comm => comm.dispose());
    this.statusChanged.emit('restarting');
    this.statusChanged.emit('idle');
  }
}

class Session {
  constructor(kernel: Kernel) {
    this.session = { kernel };
    kernel.statusChanged.connect((_, status) =>
      this.statusChanged.emit(status)
    );
  }
  session: { kernel: Kernel } | null;
  readonly kernelChanged = new Signal<this, unknown>(this);
  readonly statusChanged = new Signal<this, string>(this);
}

function text(node: HTMLElement, selector: string): string {
  return node.querySelector<HTMLElement>(selector)?.textContent ?? '';
}

describe('the door for JupyterLab', () => {
  let kernel: Kernel;
  let session: Session;

  function open(payload: Record<string, unknown>): { output: TimingsRenderer } {
    const output = new TimingsRenderer({
      translate: ENGLISH,
      findSession: () => session as unknown as ISession
    });
    const model: IRenderMime.IMimeModel = {
      trusted: true,
      data: bundle(payload),
      metadata: {},
      setData: ({ data }) => saved.push(data)
    };
    void output.renderModel(model);
    Widget.attach(output, document.body);
    browser.frame();
    return { output };
  }
  let saved: any[];

  beforeEach(() => {
    saved = [];
    kernel = new Kernel();
    session = new Session(kernel);
  });

  it('says what it waits for, then draws with the first iteration', () => {
    const waiting = { state: 'waiting', message: 'Waiting for rank 1.' };
    const { output } = open(snapshot(0, [], waiting));
    expect(text(output.node, '.gw-live-waiting')).toBe('Waiting for rank 1.');
    expect(
      output.node.querySelector<HTMLElement>('.gw-live-body')?.hidden
    ).toBe(true);
    kernel.send(...message('window', 1, rows(0, 1)));
    browser.frame();
    expect(
      output.node.querySelector<HTMLElement>('.gw-live-body')?.hidden
    ).toBe(false);
    expect(text(output.node, '.gw-live-one .gw-live-title')).toBe(
      'iteration 0 · latest'
    );
    output.dispose();
  });

  it('shows figures with their units and unknown ones as a dash with the reason', () => {
    const { output } = open(snapshot(1, rows(0, 10)));
    const keys = text(output.node, '.gw-live-key');
    expect(keys).toContain('24.3 ms');
    expect(keys).toContain('25 %');
    expect(keys).toContain('rank 1 +4.10 ms');
    const dash = output.node.querySelector<HTMLElement>(
      '.gw-live-key .gw-live-unknown'
    )!;
    expect(dash.textContent).toBe('–');
    expect(dash.tabIndex).toBe(0);
    expect(dash.getAttribute('aria-label')).toBe('nothing was timed yet');
    expect(dash.dataset.reason).toBe('nothing was timed yet');
    output.dispose();
  });

  it('goes on live from the snapshot, without opening a comm', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(text(output.node, '.gw-live-one .gw-live-title')).toBe(
      'iteration 11 · latest'
    );
    output.dispose();
  });

  it('draws once per frame, however many messages came', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    for (let seq = 5; seq < 15; seq++) {
      kernel.send(...message('delta', seq, rows(5 + seq, 6 + seq)));
    }
    expect(browser.frame()).toBeLessThanOrEqual(4); // one of ours, one per uPlot
    output.dispose();
  });

  it('does not draw while it cannot be seen, and catches up after', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    browser.frame();
    browser.show(false);
    kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(text(output.node, '.gw-live-one .gw-live-title')).toBe(
      'iteration 9 · latest'
    );
    browser.show(true);
    browser.frame();
    expect(text(output.node, '.gw-live-one .gw-live-title')).toBe(
      'iteration 11 · latest'
    );
    output.dispose();
  });

  it('stands still while paused, and collects', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const pause =
      output.node.querySelector<HTMLButtonElement>('.gw-live-button')!;
    pause.click();
    kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(text(output.node, '.gw-live-one .gw-live-title')).toContain(
      'iteration 9'
    );
    expect(pause.getAttribute('aria-pressed')).toBe('true');
    pause.click();
    browser.frame();
    expect(text(output.node, '.gw-live-one .gw-live-title')).toContain(
      'iteration 11'
    );
    output.dispose();
  });

  it('reads one iteration by the arrow keys', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const charts = output.node.querySelector<HTMLElement>('.gw-live-charts')!;
    const press = (key: string): boolean =>
      charts.dispatchEvent(
        new KeyboardEvent('keydown', { key, cancelable: true })
      );
    expect(press('ArrowLeft')).toBe(false); // taken: Lab must not move to another cell
    expect(press('x')).toBe(true);
    output.dispose();
  });

  it('shows the figures of the rank that is chosen', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const [select] = output.node.querySelectorAll('select');
    expect([...select.options].map(option => option.text)).toEqual([
      'all (mean)',
      '0 · vm1',
      '1 · vm2'
    ]);
    select.value = '1';
    select.dispatchEvent(new Event('change'));
    browser.frame();
    expect(text(output.node, '.gw-live-table th')).toBe('rank 1');
    output.dispose();
  });

  it('says that the run has ended', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const ended = {
      state: 'ended',
      message: 'The run ended after 10 iterations.'
    };
    kernel.send(...message('window', 5, rows(0, 10), ended));
    browser.frame();
    expect(text(output.node, '.gw-live-state')).toBe(
      'The run ended after 10 iterations.'
    );
    output.dispose();
  });

  it('writes the last state into an output that missed the update', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const data = bundle(snapshot(9, rows(0, 20), { state: 'ended' }));
    kernel.send({ type: 'saved', data });
    expect(saved).toEqual([data]);
    output.dispose();
  });

  it('does not write what the output already holds', () => {
    const { output } = open(snapshot(9, rows(0, 10)));
    kernel.send({ type: 'saved', data: bundle(snapshot(9, rows(0, 10))) });
    expect(saved).toEqual([]);
    output.dispose();
  });

  it('hears the kernel again after a restart', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    kernel.restart();
    browser.frame();
    expect(text(output.node, '.gw-live-state')).toMatch(/kernel .* is gone/);
    kernel.send(...message('window', 1, rows(0, 3), { run: 1 }));
    browser.frame();
    expect(text(output.node, '.gw-live-state')).toBe('running on 2 ranks');
    output.dispose();
  });

  it('follows its notebook to another kernel', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const other = new Kernel();
    session.session = { kernel: other };
    session.kernelChanged.emit(undefined);
    expect(kernel.comms.size).toBe(0);
    expect([...other.comms.keys()]).toEqual(['timings-abc']);
    output.dispose();
  });

  it('shares one comm with another view of the same output', () => {
    const first = open(snapshot(4, rows(0, 10))).output;
    const second = open(snapshot(4, rows(0, 10))).output;
    kernel.send(...message('delta', 5, rows(10, 11)));
    browser.frame();
    for (const output of [first, second]) {
      expect(text(output.node, '.gw-live-one .gw-live-title')).toContain(
        'iteration 10'
      );
    }
    first.dispose();
    expect(kernel.comms.size).toBe(1);
    second.dispose();
    expect(kernel.comms.size).toBe(0);
  });

  it('says so where another notebook has the comms of the kernel', () => {
    kernel.handleComms = false;
    const { output } = open(snapshot(4, rows(0, 10)));
    browser.frame();
    expect(text(output.node, '.gw-live-state')).toContain('other notebook');
    output.dispose();
  });

  it('lets go of everything when disposed, twice too', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    output.dispose();
    output.dispose();
    expect(kernel.comms.size).toBe(0);
    kernel.send(...message('delta', 5, rows(10, 11)));
    expect(browser.frame()).toBe(0);
  });

  it('has nothing of the data as HTML', () => {
    const hostile = '<img src=x onerror=alert(1)>';
    const { output } = open(snapshot(1, rows(0, 2), { message: hostile }));
    expect(output.node.querySelector('img')).toBeNull();
    expect(text(output.node, '.gw-live-state')).toBe(hostile);
    output.dispose();
  });

  describe('a marked stretch', () => {
    let output: TimingsRenderer;
    const press = (key: string): void => {
      const charts = output.node.querySelector<HTMLElement>('.gw-live-charts')!;
      charts.dispatchEvent(
        new KeyboardEvent('keydown', { key, cancelable: true, bubbles: true })
      );
      browser.frame();
    };
    const marked = (): string => text(output.node, '.gw-live-notice');
    const names = (): string[] =>
      [...output.node.querySelectorAll('.gw-live-collectives tbody th')].map(
        name => name.textContent!
      );

    beforeEach(() => {
      const slow = { iteration_us: 50000, exposed_us: 36000 };
      const late = [row(39, 0, slow), row(39, 1, slow)];
      ({ output } = open(snapshot(4, [...rows(0, 39), ...late])));
    });
    afterEach(() => output.dispose());

    it('is answered for at once from what the page holds', () => {
      press('+');
      expect(text(output.node, '.gw-live-iteration')).toMatch(/^\d+–39/);
      expect(text(output.node, '.gw-live-one .gw-live-title')).toMatch(
        /^mean of iterations \d+ to 39$/
      );
      expect(text(output.node, '.gw-live-key')).toContain('20.0 ms');
      expect(marked()).toContain('until the kernel answers');
    });

    it('is asked of the kernel, whose answer then stands', async () => {
      press('+');
      await new Promise(done => setTimeout(done));
      const [asked] = kernel.asked;
      expect(asked).toMatchObject({ type: 'details', last: 39 });
      const found = details(asked.first, asked.last);
      found.summary.iteration_us = 77000;
      kernel.send({ type: 'answer', run: 0, asked, details: found });
      browser.frame();
      expect(text(output.node, '.gw-live-key')).toContain('77.0 ms');
      expect(marked()).not.toContain('page');
      expect(marked()).toContain('Rank 1 is late since');
    });

    it('is not mistaken for another that was asked for before', async () => {
      press('+');
      await new Promise(done => setTimeout(done));
      const asked = { type: 'details', first: 1, last: 2 };
      kernel.send({ type: 'answer', run: 0, asked, details: details(1, 2) });
      browser.frame();
      expect(marked()).toContain('until the kernel answers');
    });

    it('says what is not known where the kernel is gone', () => {
      session.session = null;
      session.kernelChanged.emit(undefined);
      press('+');
      expect(marked()).toContain('no kernel answers');
      expect(text(output.node, '.gw-live-none')).toContain('Not known');
      const table = output.node.querySelector<HTMLElement>(
        'table[aria-label="Collectives"]'
      );
      expect(table!.hidden).toBe(true);
    });

    it('is left by escape, by its button, and by follow', () => {
      for (const leave of [
        () => press('Escape'),
        () =>
          [...output.node.querySelectorAll('button')]
            .find(one => one.textContent === 'leave (Esc)')!
            .click(),
        () =>
          [...output.node.querySelectorAll('button')]
            .find(one => one.textContent === 'follow')!
            .click()
      ]) {
        press('+');
        expect(marked()).toContain('Iterations');
        leave();
        browser.frame();
        expect(marked()).not.toContain('Iterations');
        expect(names()).toEqual(['head.weight', 'body.weight']);
      }
    });

    it('is that of a late rank, by a click', () => {
      expect(marked()).toContain(
        'Rank 1 is late since iteration 0, by its data'
      );
      [...output.node.querySelectorAll('button')]
        .find(one => one.textContent === 'show')!
        .click();
      browser.frame();
      expect(marked()).toContain('Iterations 0 to 39');
    });
  });

  it('sorts the collectives by a click on a name, both ways', () => {
    const { output } = open(snapshot(4, rows(0, 10)));
    const table = output.node.querySelector('table[aria-label="Collectives"]')!;
    const names = (): string[] =>
      [...table.querySelectorAll('tbody th')].map(one => one.textContent!);
    const heads = [...table.querySelectorAll('thead th')];
    const sorted = (): (string | undefined)[] =>
      heads
        .filter(one => one.getAttribute('aria-sort') !== 'none')
        .map(one => `${one.textContent} ${one.getAttribute('aria-sort')}`);
    expect(names()).toEqual(['head.weight', 'body.weight']);
    expect(sorted()).toEqual(['of exposed descending']);
    const size = heads[2].querySelector('button')!;
    size.click();
    expect(names()).toEqual(['body.weight', 'head.weight']);
    expect(sorted()).toEqual(['size descending']);
    size.click();
    expect(names()).toEqual(['head.weight', 'body.weight']);
    expect(sorted()).toEqual(['size ascending']);
    heads[0].querySelector('button')!.click();
    expect(names()).toEqual(['body.weight', 'head.weight']);
    output.dispose();
  });

  it('asks for the older iterations that a reloaded page lacks', async () => {
    const { output } = open(snapshot(4, rows(300, 310)));
    await new Promise(done => setTimeout(done));
    expect(kernel.asked).toEqual([{ type: 'rows', before: 300 }]);
    const [more, buffers] = message('answer', 0, rows(100, 300), {
      asked: kernel.asked[0]
    });
    kernel.send(more, buffers);
    browser.frame();
    const [, span] = output.node.querySelectorAll('select');
    span.value = '2000';
    span.dispatchEvent(new Event('change'));
    browser.frame();
    expect(text(output.node, '.gw-live-iteration')).toContain('9');
    expect(kernel.asked).toHaveLength(1); // no more than one a second
    output.dispose();
  });

  it('stacks its columns in a narrow cell', () => {
    const { output } = open(snapshot(1, rows(0, 2)));
    const main = output.node.querySelector('.gw-live-main')!;
    expect(main.classList.contains('gw-live-narrow')).toBe(false);
    browser.resize(500);
    expect(main.classList.contains('gw-live-narrow')).toBe(true);
    browser.resize(900);
    expect(main.classList.contains('gw-live-narrow')).toBe(false);
    output.dispose();
  });
});

describe('the door for other front ends', () => {
  /** Anywidget's model, as far as the widget uses it. */
  class Model {
    constructor(private _snapshot: unknown) {}
    send(): void {}
    get(): unknown {
      return this._snapshot;
    }
    on(event: string, callback: (...args: any[]) => void): void {
      this.callbacks.set(event, callback);
    }
    off(event: string): void {
      this.callbacks.delete(event);
    }
    readonly callbacks = new Map<string, (...args: any[]) => void>();
  }

  it('draws the snapshot, goes on by messages, and lets go', () => {
    const model = new Model(snapshot(1, rows(0, 5)));
    const el = document.createElement('div');
    document.body.append(el);
    const widget = factory();
    widget.initialize();
    const stop = widget.render({ model, el });
    browser.frame();
    expect(text(el, '.gw-live-one .gw-live-title')).toContain('iteration 4');
    model.callbacks.get('msg:custom')!(...message('delta', 2, rows(5, 7)));
    browser.frame();
    expect(text(el, '.gw-live-one .gw-live-title')).toContain('iteration 6');
    stop();
    expect(model.callbacks.size).toBe(0);
    expect(el.children.length).toBe(0);
  });

  it('waits where the kernel has no snapshot yet', () => {
    const el = document.createElement('div');
    const stop = factory().render({ model: new Model({}), el });
    expect(text(el, '.gw-live-waiting')).toBe(
      'Waiting for the first iteration.'
    );
    stop();
  });

  it('reads the MIME type that the kernel writes', () => {
    expect(MIME_TYPE).toBe('application/vnd.gradient-workbench.timings+json');
  });
});
