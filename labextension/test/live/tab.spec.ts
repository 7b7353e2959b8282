import { ISessionContext } from '@jupyterlab/apputils';
import { ServerConnection } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { KernelLink } from '../../src/cluster/link';
import { LiveTab } from '../../src/live/tab';
import { cluster } from '../fixtures';

/** The part of a link that the tab uses. */
class Link {
  readonly kernel = { id: 'k1' };
  readonly stateChanged = new Signal<this, void>(this);
  state: Partial<KernelLink.IState> = { loaded: true, cluster: null };
  opened: ((error: Error) => void)[] = [];

  openLive(): Promise<unknown> {
    return new Promise((_, reject) => this.opened.push(reject));
  }

  change(state: Partial<KernelLink.IState>): void {
    this.state = state;
    this.stateChanged.emit();
  }
}

const trans = nullTranslator.load('');

describe('the live view in a tab', () => {
  let link: Link;
  let tab: LiveTab;

  beforeEach(() => {
    link = new Link();
    const session = {
      kernelChanged: new Signal({}),
      connectionStatusChanged: new Signal({})
    };
    tab = new LiveTab({
      path: 'a.ipynb',
      session: session as unknown as ISessionContext,
      linkOf: () => link as unknown as KernelLink,
      serverSettings: ServerConnection.makeSettings(),
      translate: trans
    });
  });

  afterEach(() => tab.dispose());

  const up = { loaded: true, cluster: cluster('ready') };

  it('asks once for each cluster, while its state changes', () => {
    link.change(up);
    link.change({ ...up, cluster: cluster('running') });
    expect(link.opened).toHaveLength(1);
  });

  it('names the new path of its notebook', () => {
    expect(tab.node.textContent).toContain('a.ipynb');
    tab.path = 'folder/b.ipynb';
    expect(tab.node.textContent).toContain('folder/b.ipynb');
  });

  it('asks again after a restart of the kernel, for a cluster of the same name', () => {
    link.change(up);
    link.change({ loaded: false, cluster: null });
    link.change(up);
    expect(link.opened).toHaveLength(2);
  });

  it('asks no more because an earlier request failed', async () => {
    link.change(up);
    link.change({ loaded: false, cluster: null });
    link.change(up);
    link.opened[0](new Error('restarted'));
    await new Promise(resolve => setTimeout(resolve));
    expect(tab.node.textContent).not.toContain('restarted');
    link.change({ ...up, cluster: cluster('running') });
    expect(link.opened).toHaveLength(2);
  });
});
