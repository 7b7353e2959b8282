import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { ClusterModel } from '../src/cluster/model';
import { addClusterCommands } from '../src/commands/cluster';
import { ClusterState } from '../src/schema/cluster';
import { CommandIDs } from '../src/tokens';
import { cluster } from './fixtures';

describe('the commands of the cluster', () => {
  const commands = new CommandRegistry();
  let state: ClusterState = 'ready';
  const asked: unknown[] = [];
  const link = {
    get state() {
      return { language: 'python', pending: null, cluster: cluster(state) };
    },
    start: async (options: unknown) => asked.push(options),
    resize: async (ranks: unknown) => asked.push(ranks)
  };
  addClusterCommands(
    commands,
    { link } as unknown as ClusterModel,
    nullTranslator.load('')
  );

  it('measure the fabric only where the panel does', () => {
    const isEnabled = (now: ClusterState): boolean => {
      state = now;
      return commands.isEnabled(CommandIDs.calibrate);
    };
    expect(isEnabled('ready')).toBe(true);
    expect(isEnabled('running')).toBe(false);
    expect(isEnabled('failed')).toBe(false);
  });

  it.each(['', 'many', NaN, 0, 1.5, 2000])(
    'send no number of ranks such as %p',
    async ranks => {
      state = 'ready';
      const ended = commands.execute(CommandIDs.resize, { ranks });
      await dismissed();
      await ended;
      expect(asked).toEqual([]);
    }
  );

  it('send a number of ranks', async () => {
    state = 'ready';
    await commands.execute(CommandIDs.resize, { ranks: 3 });
    expect(asked).toEqual([3]);
  });

  /** Wait for the dialog with the error, and close it. */
  async function dismissed(): Promise<void> {
    for (;;) {
      const dialog = document.querySelector('.jp-Dialog');
      const button = dialog?.querySelector<HTMLElement>('.jp-Dialog-button');
      if (button) {
        expect(dialog!.textContent).toContain('a number from 1 to 1024');
        button.click();
        return;
      }
      await new Promise(resolve => setTimeout(resolve));
    }
  }
});
