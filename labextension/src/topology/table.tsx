import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { isUnknown } from '../schema/known';
import { IGraph } from './graph';
import { Verdicts } from './verdict';
import { possibleWords } from './words';

/** The drawing for screen readers: each GPU's distance to each NIC and GPU. */
export const Table = React.memo(
  (props: {
    graph: IGraph;
    verdicts: Verdicts;
    trans: TranslationBundle;
  }): JSX.Element | null => {
    const { graph, verdicts, trans } = props;
    const gpus = graph.devices.filter(one => one.kind === 'gpu');
    const nics = graph.devices.filter(one => one.kind === 'nic');
    if (gpus.length === 0) {
      return null;
    }
    return (
      <div className="jp-gw-Topology-table">
        <table>
          <caption>
            {trans.__('Distances over PCIe, and GPUDirect RDMA')}
          </caption>
          <thead>
            <tr>
              <th scope="col">{trans.__('GPU')}</th>
              {[...nics, ...gpus].map(one => (
                <th key={one.id} scope="col">
                  {one.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {gpus.map(gpu => (
              <tr key={gpu.id}>
                <th scope="row">{gpu.name}</th>
                {nics.map(nic => (
                  <td key={nic.id}>{Private.toNic(props, gpu.id, nic.id)}</td>
                ))}
                {gpus.map(other => (
                  <td key={other.id}>
                    {other === gpu
                      ? trans.__('itself')
                      : Private.word(verdicts.distance(gpu, other), trans)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    );
  }
);

namespace Private {
  export function toNic(
    props: { graph: IGraph; verdicts: Verdicts; trans: TranslationBundle },
    gpuId: string,
    nicId: string
  ): string {
    const { graph, verdicts, trans } = props;
    const [gpu, nic] = [gpuId, nicId].map(id =>
      graph.devices.find(one => one.id === id)!
    );
    const found = verdicts.of(gpu).find(one => one.nic === nic);
    const distance = word(verdicts.distance(gpu, nic), trans);
    return found
      ? trans.__('%1, %2', distance, possibleWords(found.possible, trans))
      : distance;
  }

  export function word(
    distance: ReturnType<Verdicts['distance']>,
    trans: TranslationBundle
  ): string {
    return isUnknown(distance)
      ? trans.__('unknown: %1', distance.unknown)
      : distance;
  }
}
