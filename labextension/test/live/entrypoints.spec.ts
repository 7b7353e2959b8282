/* eslint-disable @typescript-eslint/no-explicit-any -- fakes are parts of what they stand for */
import { MIME_TYPE } from '../../src/live/protocol';
import factory from '../../src/live/widget';
import { installBrowser } from './browser';
import { Kernel, NotebookPage, text, title } from './notebook';
import { bundle, message, rows, snapshot } from './rows';

const browser = installBrowser();

describe('the entry point for JupyterLab', () => {
  let page: NotebookPage;
  beforeEach(() => (page = new NotebookPage(browser)));

  it('goes on live from the snapshot, without opening a comm', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    page.kernel.send(...message('delta', 5, rows(10, 12)));
    browser.frame();
    expect(title(output.node)).toBe('Iteration 11 · latest');
    output.dispose();
  });

  it('writes the last state into an output that missed the update', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const data = bundle(snapshot(9, rows(0, 20), { state: 'ended' }));
    page.kernel.send({ type: 'saved', data });
    expect(page.saved).toEqual([data]);
    output.dispose();
  });

  it('does not write what the output already holds', () => {
    const output = page.open(snapshot(9, rows(0, 10)));
    page.kernel.send({ type: 'saved', data: bundle(snapshot(9, rows(0, 10))) });
    expect(page.saved).toEqual([]);
    output.dispose();
  });

  it('hears the kernel again after a restart', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    page.kernel.restart();
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-state')).toMatch(
      /kernel .* has ended/
    );
    page.kernel.send(...message('window', 1, rows(0, 3), { run: 1 }));
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-state')).toBe('running on 2 ranks');
    output.dispose();
  });

  it('follows its notebook to another kernel', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    const other = new Kernel();
    page.session.session = { kernel: other };
    page.session.kernelChanged.emit(undefined);
    expect(page.kernel.comms.size).toBe(0);
    expect([...other.comms.keys()]).toEqual(['timings-abc']);
    output.dispose();
  });

  it('shares one comm with another view of the same output', () => {
    const first = page.open(snapshot(4, rows(0, 10)));
    const second = page.open(snapshot(4, rows(0, 10)));
    page.kernel.send(...message('delta', 5, rows(10, 11)));
    browser.frame();
    for (const output of [first, second]) {
      expect(title(output.node)).toContain('Iteration 10');
    }
    first.dispose();
    expect(page.kernel.comms.size).toBe(1);
    second.dispose();
    expect(page.kernel.comms.size).toBe(0);
  });

  it('says so where another notebook has the comms of the kernel', () => {
    page.kernel.handleComms = false;
    const output = page.open(snapshot(4, rows(0, 10)));
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-state')).toContain('other notebook');
    output.dispose();
  });

  it('asks for the older iterations that a reloaded page lacks', async () => {
    const output = page.open(snapshot(4, rows(300, 310)));
    await new Promise(done => setTimeout(done));
    expect(page.kernel.asked).toEqual([{ type: 'rows', before: 300 }]);
    const [more, buffers] = message('answer', 0, rows(100, 300), {
      asked: page.kernel.asked[0]
    });
    page.kernel.send(more, buffers);
    browser.frame();
    const [, span] = output.node.querySelectorAll('select');
    span.value = '2000';
    span.dispatchEvent(new Event('change'));
    browser.frame();
    expect(text(output.node, '.jp-gw-Live-iteration')).toContain('9');
    expect(page.kernel.asked).toHaveLength(1); // no more than one a second
    output.dispose();
  });

  it('lets go of everything when disposed, twice too', () => {
    const output = page.open(snapshot(4, rows(0, 10)));
    output.dispose();
    output.dispose();
    expect(page.kernel.comms.size).toBe(0);
    page.kernel.send(...message('delta', 5, rows(10, 11)));
    expect(browser.frame()).toBe(0);
  });
});

describe('the entry point for other front ends', () => {
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
    expect(title(el)).toContain('Iteration 4');
    model.callbacks.get('msg:custom')!(...message('delta', 2, rows(5, 7)));
    browser.frame();
    expect(title(el)).toContain('Iteration 6');
    stop();
    expect(model.callbacks.size).toBe(0);
    expect(el.children.length).toBe(0);
  });

  it('waits where the kernel has no snapshot yet', () => {
    const el = document.createElement('div');
    const stop = factory().render({ model: new Model({}), el });
    expect(text(el, '.jp-gw-Live-waiting')).toBe(
      'Waiting for the first iteration.'
    );
    stop();
  });

  it('reads the MIME type that the kernel writes', () => {
    expect(MIME_TYPE).toBe('application/vnd.gradient-workbench.timings+json');
  });
});
