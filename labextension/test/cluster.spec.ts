import { ISessionContext } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { framePromise } from '@jupyterlab/testing';
import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { ClusterModel } from '../src/cluster/model';
import { ClusterView } from '../src/cluster/view';
import { cluster } from './fixtures';

/** A connection of one notebook to a kernel; `handleComms` as Lab gives it. */
class Connection {
  readonly statusChanged = new Signal<this, string>(this);
  readonly disposed = new Signal<this, void>(this);
  isDisposed = false;
  supportsSubshells = false;
  info = Promise.resolve({ language_info: { name: 'python' } });
  sent: unknown[] = [];
  hear: (data: unknown) => void = () => undefined;

  constructor(
    readonly id: string,
    readonly handleComms = true
  ) {}

  createComm(): unknown {
    const comm = {
      isDisposed: false,
      onMsg: (_: unknown): void => undefined,
      send: (data: unknown) => this.sent.push(data),
      dispose: () => undefined
    };
    this.hear = data => comm.onMsg({ content: { data } });
    return comm;
  }

  requestCommInfo(): Promise<unknown> {
    return Promise.resolve({ content: { status: 'ok', comms: {} } });
  }

  requestExecute(): unknown {
    return { done: Promise.resolve({ content: { status: 'ok' } }) };
  }
}

class Notebook {
  readonly sessionContext: ISessionContext;

  constructor(name: string, kernel: Connection | null, isReady = true) {
    const session = { kernel };
    this.sessionContext = {
      name,
      session,
      isReady
    } as unknown as ISessionContext;
    Object.assign(this.sessionContext, {
      kernelChanged: new Signal(session),
      connectionStatusChanged: new Signal(session)
    });
  }
}

class Tracker {
  readonly currentChanged = new Signal<this, Notebook | null>(this);
  notebooks: Notebook[] = [];
  currentWidget: Notebook | null = null;

  forEach(visit: (notebook: Notebook) => void): void {
    this.notebooks.forEach(visit);
  }

  show(notebook: Notebook): void {
    this.currentWidget = notebook;
    if (!this.notebooks.includes(notebook)) {
      this.notebooks.push(notebook);
    }
    this.currentChanged.emit(notebook);
  }
}

describe('the cluster of the notebook in front', () => {
  let tracker: Tracker;
  let model: ClusterModel;
  let view: ClusterView;

  beforeEach(() => {
    tracker = new Tracker();
    model = new ClusterModel({
      tracker: tracker as unknown as INotebookTracker
    });
    view = new ClusterView(model, nullTranslator.load(''));
    Widget.attach(view, document.body);
    model.awake = true;
  });

  afterEach(() => {
    view.dispose();
    model.dispose();
  });

  const shown = async (): Promise<string> => {
    await framePromise();
    MessageLoop.flush();
    await view.renderPromise;
    return view.node.textContent!;
  };

  const button = (name: string): HTMLButtonElement =>
    [...view.node.querySelectorAll('button')].find(
      one => one.textContent === name
    )!;

  it('says what to do where there is no notebook', async () => {
    expect(await shown()).toContain('No notebook is open');
  });

  it('tells a notebook that waits for its kernel from one without', async () => {
    tracker.show(new Notebook('a.ipynb', null, false));
    expect(await shown()).toContain('Waiting for the kernel');
    tracker.show(new Notebook('b.ipynb', null));
    expect(await shown()).toContain('has no kernel');
  });

  it('offers a start, and no stop, where there is no cluster', async () => {
    tracker.show(new Notebook('a.ipynb', new Connection('k1')));
    expect(await shown()).toContain('No cluster.');
    expect(button('Start').disabled).toBe(false);
    expect(button('Stop')).toBeUndefined();
  });

  it('starts as many ranks as the field says', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    await shown();
    button('Start').click();
    await shown();
    expect(kernel.sent).toEqual([
      {
        type: 'start',
        options: { n: 2, backend: 'horovod', launcher: 'local' }
      }
    ]);
    expect(view.node.textContent).toContain('starting');
    expect(button('Start').disabled).toBe(true);
  });

  it('shows each rank in a row, and offers a stop', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    kernel.hear({ type: 'state', cluster: cluster('running', 3) });
    expect(await shown()).toContain('running3 ranks');
    expect(view.node.querySelector('input')!.value).toBe('3');
    const rows = [...view.node.querySelectorAll('tbody tr')];
    expect(rows.map(row => row.textContent)).toEqual([
      '0vm14711CPUloready',
      '1vm14712CPUloready',
      '2vm14713CPUloready'
    ]);
    button('Stop').click();
    await shown();
    expect(kernel.sent).toEqual([
      { type: 'watch', on: true },
      { type: 'stop' }
    ]);
  });

  const fill = async (label: string, value: string): Promise<void> => {
    const name = [...view.node.querySelectorAll('label')].find(
      one => one.textContent === label
    )!;
    const field = view.node.querySelector(`[id="${name.htmlFor}"]`) as
      HTMLInputElement | HTMLSelectElement;
    // React follows the value by its own setter.
    const type = Object.getPrototypeOf(field);
    Object.getOwnPropertyDescriptor(type, 'value')!.set!.call(field, value);
    field.dispatchEvent(
      new Event(field.tagName === 'SELECT' ? 'change' : 'input', {
        bubbles: true
      })
    );
    await shown();
  };

  it('starts on VMs with the fields that apply to them', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    await shown();
    await fill('Where', 'ssh');
    expect(view.node.textContent).not.toContain('Partition');
    button('Start').click();
    expect(await shown()).toContain('Name VMs and ranks');
    expect(kernel.sent).toEqual([]);
    await fill('Hosts', 'vm1:2,vm2:2');
    await fill('Backend', 'ddp');
    await fill('ssh config', 'config');
    button('Start').click();
    await shown();
    expect(kernel.sent).toEqual([
      {
        type: 'start',
        options: {
          hosts: 'vm1:2,vm2:2',
          backend: 'ddp',
          ssh_config: 'config',
          launcher: 'ssh'
        }
      }
    ]);
  });

  it('says next to the field what is wrong', async () => {
    tracker.show(new Notebook('a.ipynb', new Connection('k1')));
    await shown();
    await fill('Ranks', '0');
    await fill('Keep for', 'soon');
    const problems = [...view.node.querySelectorAll('[role=alert]')];
    expect(problems.map(one => one.textContent)).toEqual([
      'Write a number from 1 to 1024.',
      'Write a time such as 90s, 30m or 1h30m.'
    ]);
  });

  it('leaves the number of ranks to the hosts', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    await shown();
    await fill('Where', 'mpi');
    await fill('Hosts', 'vm1:2');
    button('Start').click();
    await shown();
    expect(kernel.sent[0]).toMatchObject({
      options: { hosts: 'vm1:2', launcher: 'mpi' }
    });
    expect(kernel.sent[0]).not.toHaveProperty('options.n');
  });

  it('resizes, calibrates and restarts lost ranks only', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    kernel.hear({ type: 'state', cluster: cluster('ready', 2) });
    await shown();
    expect(view.node.textContent).not.toContain('lost');
    await fill('Ranks', '3');
    button('Resize').click();
    await shown();
    expect(kernel.sent).toContainEqual({ type: 'resize', ranks: 3 });
    kernel.hear({ type: 'done', request: 'resize' });
    await shown();
    button('Calibrate').click();
    await shown();
    expect(kernel.sent).toContainEqual({ type: 'calibrate' });
    const failed = cluster('failed', 2);
    failed.ranks[1].state = 'dead';
    kernel.hear({ type: 'done', request: 'calibrate' });
    kernel.hear({ type: 'state', cluster: failed });
    await shown();
    expect(button('Calibrate').disabled).toBe(true);
    button('Restart 1 lost rank').click();
    await shown();
    expect(kernel.sent).toContainEqual({ type: 'restart' });
  });

  it('says why ranks cannot be changed while a cell runs', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    kernel.hear({ type: 'state', cluster: cluster('running', 2) });
    await shown();
    expect(button('Resize').disabled).toBe(true);
    expect(button('Calibrate').title).toContain('Its ranks are in use');
    expect(button('Stop').disabled).toBe(false);
  });

  it('shows an error of the kernel as an alert', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    kernel.hear({
      type: 'error',
      message: '13 ranks were asked for, 12 came up'
    });
    await shown();
    expect(view.node.querySelector('[role=alert]')!.textContent).toContain(
      '12 came up'
    );
  });

  it('keeps a row for each rank that is not up yet', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    kernel.hear({
      type: 'state',
      cluster: { ...cluster('starting', 3), ranks: [] }
    });
    await shown();
    const rows = [...view.node.querySelectorAll('tbody tr')];
    expect(rows).toHaveLength(3);
    expect(rows[0].querySelectorAll('[role=img]')).toHaveLength(4);
  });

  it('says once why a start failed', async () => {
    const kernel = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', kernel));
    const message = 'did not start: 12 came up';
    kernel.hear({ type: 'error', message: '12 came up' });
    kernel.hear({
      type: 'state',
      cluster: { ...cluster('stopped'), message }
    });
    expect((await shown()).split('12 came up')).toHaveLength(2);
  });

  it('follows the notebook in front, and knows the first again', async () => {
    const [one, two] = [new Connection('k1'), new Connection('k2')];
    const first = new Notebook('a.ipynb', one);
    tracker.show(first);
    one.hear({ type: 'state', cluster: cluster('ready') });
    tracker.show(new Notebook('b.ipynb', two));
    one.hear({ type: 'state', cluster: cluster('running') });
    expect(await shown()).toContain('No cluster.');
    tracker.show(first);
    expect(await shown()).toContain('running');
  });

  it('shares the link of two notebooks on one kernel, of which one may have comms', async () => {
    const speaker = new Connection('k1');
    tracker.show(new Notebook('a.ipynb', speaker));
    tracker.show(new Notebook('b.ipynb', new Connection('k1', false)));
    speaker.hear({ type: 'state', cluster: cluster('ready') });
    expect(await shown()).toContain('ready2 ranks');
  });

  it('says so where the comms of the kernel are elsewhere', async () => {
    tracker.show(new Notebook('b.ipynb', new Connection('k1', false)));
    expect(await shown()).toContain('Another view');
  });

  it('watches the VMs of the notebook in front alone, and of none while asleep', async () => {
    const [one, two] = [new Connection('k1'), new Connection('k2')];
    for (const [name, kernel] of [
      ['a.ipynb', one],
      ['b.ipynb', two]
    ] as const) {
      tracker.show(new Notebook(name, kernel));
      kernel.hear({ type: 'state', cluster: cluster('ready') });
      await shown();
    }
    const on = { type: 'watch', on: true };
    const off = { type: 'watch', on: false };
    expect(one.sent).toEqual([on, off]);
    expect(two.sent).toEqual([on]);
    model.awake = false;
    await shown();
    expect(two.sent).toEqual([on, off]);
    model.awake = true;
    await shown();
    expect(two.sent).toEqual([on, off, on]);
    expect(one.sent).toHaveLength(2);
  });

  it('touches no kernel while asleep', async () => {
    model.awake = false;
    const kernel = new Connection('k1');
    const create = jest.spyOn(kernel, 'createComm');
    tracker.show(new Notebook('a.ipynb', kernel));
    await shown();
    expect(create).not.toHaveBeenCalled();
    model.awake = true;
    expect(create).toHaveBeenCalledTimes(1);
  });
});
