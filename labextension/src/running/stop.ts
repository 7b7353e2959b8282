import { INotebookTracker } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';

import { ITranslate } from '../common/translate';
import { ClusterModel } from '../cluster/model';
import { KernelLink } from '../cluster/link';

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
  const kernel = kernels.connectTo({ model: { id: kernelId, name: '' } });
  const own = new KernelLink({ kernel, trans });
  try {
    await own.stop();
    await stopped(own);
  } finally {
    own.dispose();
    kernel.dispose();
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
