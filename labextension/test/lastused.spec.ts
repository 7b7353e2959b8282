import { StateDB } from '@jupyterlab/statedb';

import { EMPTY, readDraft } from '../src/cluster/fields';
import { LastUsed } from '../src/cluster/lastused';

const loaded = (lastUsed: LastUsed): Promise<void> =>
  new Promise(resolve => lastUsed.changed.connect(() => resolve()));

describe('the last start', () => {
  it('is there again in the next page, once it was used', async () => {
    const state = new StateDB();
    const first = new LastUsed(state);
    first.set({ launcher: 'ssh', hosts: 'vm1:2' });
    await first.save();
    first.set({ hosts: 'vm9:9' });
    const next = new LastUsed(state);
    await loaded(next);
    expect(next.draft).toEqual({ ...EMPTY, launcher: 'ssh', hosts: 'vm1:2' });
  });

  it('replaces what is not valid by the default', () => {
    expect(readDraft(null)).toEqual(EMPTY);
    expect(
      readDraft({ launcher: 'ftp', backend: 7, ranks: '4', other: 'x' })
    ).toEqual({ ...EMPTY, ranks: '4' });
  });
});
