import { InputDialog, showErrorMessage } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { isRanks, MAX_RANKS } from '../cluster/fields';
import { ClusterModel } from '../cluster/model';
import { KernelLink } from '../cluster/link';
import { ClusterState } from '../schema/cluster';
import { CommandIDs } from '../tokens';

const DEFAULT_RANKS = 2;

/** A JSON schema of the arguments. */
const RANKS = {
  args: {
    type: 'object',
    properties: { ranks: { type: 'integer', minimum: 1 } }
  }
};
const NONE = { args: { type: 'object', properties: {} } };

/** The commands that change the cluster of the active notebook. */
export function addClusterCommands(
  commands: CommandRegistry,
  model: ClusterModel,
  trans: TranslationBundle
): void {
  const state = (): ClusterState =>
    model.link?.state.cluster?.state ?? 'stopped';
  const isFree = (): boolean =>
    model.link?.state.language === 'python' && !model.link.state.pending;
  const add = (
    id: string,
    label: string,
    isEnabled: () => boolean,
    execute: (link: KernelLink) => Promise<void>
  ): void => {
    commands.addCommand(id, {
      label,
      describedBy: NONE,
      isEnabled: () => isFree() && isEnabled(),
      execute: () => (model.link ? execute(model.link) : undefined)
    });
  };
  const addWithRanks = (
    id: string,
    label: string,
    isEnabled: () => boolean,
    title: string,
    execute: (link: KernelLink, ranks: number) => Promise<void>
  ): void => {
    commands.addCommand(id, {
      label,
      describedBy: RANKS,
      isEnabled: () => isFree() && isEnabled(),
      execute: async args => {
        const { link } = model;
        const value = link?.state.cluster?.n || DEFAULT_RANKS;
        const ranks =
          args.ranks ?? (await InputDialog.getNumber({ title, value })).value;
        if (!link || ranks === null) {
          return;
        }
        if (!isRanks(String(ranks))) {
          await showErrorMessage(
            title,
            trans.__('Write a number from 1 to %1.', MAX_RANKS)
          );
          return;
        }
        await execute(link, Number(ranks));
      }
    });
  };
  addWithRanks(
    CommandIDs.start,
    trans.__('Start Cluster…'),
    () => state() === 'stopped',
    trans.__('Number of ranks on this machine'),
    (link, ranks) => link.start({ ranks })
  );
  addWithRanks(
    CommandIDs.resize,
    trans.__('Resize Cluster…'),
    () => ['ready', 'failed'].includes(state()),
    trans.__('Number of ranks'),
    (link, ranks) => link.resize(ranks)
  );
  add(
    CommandIDs.stop,
    trans.__('Stop Cluster'),
    () => !['stopped', 'stopping'].includes(state()),
    link => link.stop()
  );
  add(
    CommandIDs.restart,
    trans.__('Restart Lost Ranks'),
    () => state() === 'failed',
    link => link.restart()
  );
  add(
    CommandIDs.calibrate,
    trans.__('Calibrate Fabric'),
    () => state() === 'ready',
    link => link.calibrate()
  );
}
