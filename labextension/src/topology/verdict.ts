/** The distance of each GPU to each NIC, and whether NCCL uses GPUDirect RDMA. */
import { ENGLISH, ITranslate } from '../common/translate';
import { isUnknown, Known } from '../schema/known';
import { IDistance, ISnapshot } from '../schema/snapshot';
import { IDevice, IGraph } from './graph';
import { NVML, SYSFS, TOPOLOGY_FILE } from './tree';

/** The nearest first; NVML's INTERNAL means two GPUs of one board. */
const ORDER = ['INTERNAL', 'PIX', 'PXB', 'PHB', 'NODE', 'SYS'];
const SOURCES = [TOPOLOGY_FILE, SYSFS, NVML];

export interface IVerdict {
  readonly gpu: IDevice;
  readonly nic: IDevice;
  readonly distance: Known<string>;
  readonly possible: Known<boolean>;
  /** The reason for the result. */
  readonly why: string;
}

export class Verdicts {
  constructor(
    snapshot: ISnapshot,
    graph: IGraph,
    private _trans: ITranslate = ENGLISH
  ) {
    const pcie = isUnknown(snapshot.pcie) ? null : snapshot.pcie;
    this._distances = Private.best(pcie?.distances ?? []);
    const direct = new Map(
      pcie?.gpudirect.map(one => [Private.key(one.gpu, one.nic), one])
    );
    const nics = graph.devices.filter(one => one.kind === 'nic');
    for (const gpu of graph.devices.filter(one => one.kind === 'gpu')) {
      const row = nics.flatMap((nic): IVerdict[] => {
        const key = Private.key(gpu.address, nic.address);
        const verdict =
          gpu.address && nic.address ? direct.get(key) : undefined;
        const distance = this.distance(gpu, nic);
        return verdict
          ? [
              {
                gpu,
                nic,
                distance,
                possible: verdict.possible,
                why: verdict.why
              }
            ]
          : [];
      });
      this._rows.set(gpu.id, row);
    }
  }

  /** The distance of two devices, by the best source that has it. */
  distance(a: IDevice, b: IDevice): Known<string> {
    const found =
      a.address &&
      b.address &&
      this._distances.get(Private.key(a.address, b.address));
    return found
      ? found.distance
      : {
          unknown: this._trans.__('the snapshot has no distance between them')
        };
  }

  /** Every relevant NIC of a GPU, in drawing order. */
  of(gpu: IDevice): readonly IVerdict[] {
    return this._rows.get(gpu.id) ?? [];
  }

  /** The nearest NICs of a GPU: several if they are equally near. */
  nearest(gpu: IDevice): readonly IVerdict[] {
    let found = this._nearest.get(gpu.id);
    if (!found) {
      const row = this.of(gpu);
      const least = Math.min(...row.map(Private.rank));
      found = row.filter(one => Private.rank(one) === least);
      this._nearest.set(gpu.id, found);
    }
    return found;
  }

  private _distances: Map<string, IDistance>;
  private _rows = new Map<string, readonly IVerdict[]>();
  /** Cached, because each NIC needs those of every GPU. */
  private _nearest = new Map<string, readonly IVerdict[]>();
}

namespace Private {
  export function key(a: string | null, b: string | null): string {
    return [a, b].sort().join(' ');
  }

  export function best(all: readonly IDistance[]): Map<string, IDistance> {
    const found = new Map<string, IDistance>();
    const rank = (one: IDistance): number =>
      SOURCES.indexOf(one.source) + (isUnknown(one.distance) ? 10 : 0);
    for (const one of all) {
      const before = found.get(key(one.a, one.b));
      if (!before || rank(one) < rank(before)) {
        found.set(key(one.a, one.b), one);
      }
    }
    return found;
  }

  /** Sort key: GPUDirect first, then by distance, then active NICs. */
  export function rank(one: IVerdict): number {
    const far = isUnknown(one.distance)
      ? ORDER.length
      : ORDER.indexOf(one.distance);
    const down = one.nic.nic!.state === 'down' ? 1 : 0;
    return (one.possible === true ? 0 : 100) + 10 * far + down;
  }
}
