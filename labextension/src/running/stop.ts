import { INotebookTracker } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';

import { ITranslate } from '../common/translate';
import { ClusterModel } from '../cluster/model';
import { KernelLink } from '../cluster/link';

const MAX_MS = 120_000;

/** Stop the cluster of a kernel, by its notebook in this page or a connection of its own. */
export async function stopByKernel(options: {
  kernelId: string;
  kernels: Kernel.IManager;
  model: ClusterModel;
  tracker: INotebookTracker | null;
  trans: ITranslate;
}): Promise<void> {
  const { kernelId, kernels, model, tracker, trans } = options;
  const panel = tracker?.find(
    one => one.sessionContext.session?.kernel?.id === kernelId
  );
  const link = panel ? model.linkOf(panel.sessionContext) : null;
  if (link) {
    await link.stop();
    return;
  }
  const found = await kernels.findById(kernelId);
  if (!found) {
    throw new Error(
      trans.__(
        'The kernel of this cluster belongs to another server. Stop the cluster in its notebook there.'
      )
    );
  }
  const kernel = kernels.connectTo({ model: found });
  const own = new KernelLink({ kernel, trans });
  try {
    await inTime(
      own.stop().then(() => stopped(own)),
      trans
    );
  } finally {
    own.dispose();
    kernel.dispose();
  }
}

/** Reject if something does not end in time, such as in a kernel that runs a cell. */
async function inTime(task: Promise<void>, trans: ITranslate): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () =>
        reject(
          new Error(
            trans.__(
              'The cluster did not stop within %1 s. Run %2 in its notebook.',
              MAX_MS / 1000,
              '%cluster stop'
            )
          )
        ),
      MAX_MS
    );
  });
  try {
    await Promise.race([task, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Wait for the kernel's answer; reject if the cluster does not stop. */
function stopped(link: KernelLink): Promise<void> {
  return new Promise((resolve, reject) => {
    const check = (): void => {
      const { cluster, error, loaded } = link.state;
      if (error) {
        reject(new Error(error));
      } else if (loaded && (!cluster || cluster.state === 'stopped')) {
        resolve();
      }
    };
    link.stateChanged.connect(check);
    link.kernel.disposed.connect(() => resolve());
    check();
  });
}
