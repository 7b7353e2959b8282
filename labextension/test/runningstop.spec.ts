import { nullTranslator } from '@jupyterlab/translation';
import { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { ClusterModel } from '../src/cluster/model';
import { stopByKernel } from '../src/running/stop';

const trans = nullTranslator.load('');

/** A connection whose kernel answers nothing, as one that runs a cell. */
function silent(): unknown {
  return {
    id: 'k1',
    statusChanged: new Signal({}),
    disposed: new Signal({}),
    isDisposed: false,
    info: new Promise(() => undefined),
    createComm: () => ({ isDisposed: false, dispose: () => undefined }),
    dispose: () => undefined
  };
}

function stop(kernels: object): Promise<void> {
  return stopByKernel({
    kernelId: 'k1',
    kernels: kernels as Kernel.IManager,
    model: {} as ClusterModel,
    tracker: null,
    trans
  });
}

describe('the stop of a cluster without a notebook in this page', () => {
  it('is refused for a kernel of another server', async () => {
    const connected: unknown[] = [];
    const kernels = {
      findById: async () => undefined,
      connectTo: (options: unknown) => connected.push(options)
    };
    await expect(stop(kernels)).rejects.toThrow('belongs to another server');
    expect(connected).toEqual([]);
  });

  it('ends with an error if the kernel does not answer', async () => {
    jest.useFakeTimers();
    try {
      const kernels = {
        findById: async () => ({ id: 'k1', name: 'python3' }),
        connectTo: silent
      };
      const late = expect(stop(kernels)).rejects.toThrow('within 120 s');
      await jest.advanceTimersByTimeAsync(121_000);
      await late;
    } finally {
      jest.useRealTimers();
    }
  });
});
