/** The current load of each edge relative to its nominal rate. */
import { ENGLISH, ITranslate } from '../common/translate';
import { isUnknown, IUnknown, Known, orElse } from '../schema/known';
import { IGpuSample, INicSample, ISample } from '../schema/sample';
import { IDevice, IGraph } from './graph';

/** The fields of a sample that the drawing needs. */
export type ITopologySample = Pick<ISample, 'gpus' | 'nics'>;

/** The load of one device's edge of one kind. */
export interface ILoad {
  /** Of the busier direction. */
  readonly bytes_per_s: Known<number>;
  /** In one direction. */
  readonly nominal_bytes_per_s: Known<number>;
  /** 0 to 1; unknown if either value is. */
  readonly share: Known<number>;
}

export type EdgeKind = 'pcie' | 'nvlink' | 'network';

/** A device's loads, by the kind of edge. */
export type Loads = Partial<Record<EdgeKind, ILoad>>;

/** Gigabytes per second of one lane in each direction, by PCIe generation (PCI-SIG). */
const GB_PER_LANE = [0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563];

/** The kinds of edges that a device's counters may measure. */
export function kindsOf(device: IDevice, graph: IGraph): EdgeKind[] {
  switch (device.kind) {
    case 'gpu': {
      const joined =
        graph.fabric?.members.some(one => one.id === device.id) ||
        graph.pairs.some(one => one.a === device.id || one.b === device.id);
      return joined ? ['nvlink', 'pcie'] : ['pcie'];
    }
    case 'nic':
      return ['network'];
    default:
      return [];
  }
}

/** The loads of every device, by its id. */
export function loadsOf(
  graph: IGraph,
  sample: ITopologySample | null,
  trans: ITranslate = ENGLISH
): Map<string, Loads> {
  return new Map(
    graph.devices.map(device => [
      device.id,
      Object.fromEntries(
        kindsOf(device, graph).map(kind => [
          kind,
          loadOf(device, kind, sample, graph, trans)
        ])
      )
    ])
  );
}

export function loadOf(
  device: IDevice,
  kind: EdgeKind,
  sample: ITopologySample | null,
  graph: IGraph,
  trans: ITranslate = ENGLISH
): ILoad {
  const nominal = Private.nominal(device, kind, trans);
  const bytes = sample
    ? (Private.bytes(device, kind, sample, graph) ?? Private.notSent(trans))
    : { unknown: trans.__('no live data') };
  const share = isUnknown(bytes)
    ? bytes
    : isUnknown(nominal)
      ? nominal
      : Math.min(1, bytes / nominal);
  return { bytes_per_s: bytes, nominal_bytes_per_s: nominal, share };
}

namespace Private {
  export function notSent(trans: ITranslate): IUnknown {
    return { unknown: trans.__('this machine does not report it') };
  }

  export function nominal(
    device: IDevice,
    kind: EdgeKind,
    trans: ITranslate
  ): Known<number> {
    if (kind === 'network') {
      const rate = device.nic?.rate_gbps ?? notSent(trans);
      return isUnknown(rate) ? rate : positive((rate * 1e9) / 8, trans);
    }
    if (kind === 'nvlink') {
      const nvlink = device.gpu?.nvlink ?? notSent(trans);
      const rate = isUnknown(nvlink) ? nvlink : nvlink.nominal_gb_per_s;
      return isUnknown(rate) ? rate : positive(rate * 1e9, trans);
    }
    const link = device.gpu?.pcie_link ?? notSent(trans);
    if (isUnknown(link)) {
      return link;
    }
    const { generation_max, width } = link;
    if (isUnknown(generation_max) || isUnknown(width)) {
      return isUnknown(generation_max) ? generation_max : width;
    }
    const lane = GB_PER_LANE[generation_max];
    return lane === undefined
      ? {
          unknown: trans.__(
            'the rate of PCIe generation %1 is unknown',
            generation_max
          )
        }
      : positive(lane * width * 1e9, trans);
  }

  /** The measured rate; `undefined` if the machine sends no such counter. */
  export function bytes(
    device: IDevice,
    kind: EdgeKind,
    sample: ITopologySample,
    graph: IGraph
  ): Known<number> | undefined {
    if (kind === 'network') {
      const nic = sample.nics.find(one => one.name === device.nic?.name);
      return busier(nic?.tx_bytes_per_s, nic?.rx_bytes_per_s);
    }
    const gpu = gpuLoad(device, sample, graph);
    return kind === 'nvlink'
      ? busier(gpu?.nvlink_tx_bytes_per_s, gpu?.nvlink_rx_bytes_per_s)
      : busier(gpu?.pcie_tx_bytes_per_s, gpu?.pcie_rx_bytes_per_s);
  }

  /** By UUID; or else by position if both lists have the same length; or else by NVML's index. */
  function gpuLoad(
    device: IDevice,
    sample: ITopologySample,
    graph: IGraph
  ): IGpuSample | undefined {
    const uuid = orElse(device.gpu?.uuid ?? '', '');
    const hasUuids = sample.gpus.some(one => typeof one.uuid === 'string');
    if (uuid !== '' && hasUuids) {
      return sample.gpus.find(one => one.uuid === uuid);
    }
    const count = graph.devices.filter(one => one.kind === 'gpu').length;
    const there = sample.gpus[device.position];
    if (count === sample.gpus.length && there.index === device.gpu?.index) {
      return there;
    }
    const same = sample.gpus.filter(one => one.index === device.gpu?.index);
    return same.length === 1 ? same[0] : undefined;
  }

  /** The larger of two directions; unknown if only one is known, since that would mislead. */
  function busier(
    a: INicSample['tx_bytes_per_s'] | undefined,
    b: INicSample['rx_bytes_per_s'] | undefined
  ): Known<number> | undefined {
    if (a === undefined || b === undefined) {
      return undefined;
    }
    return isUnknown(a) ? a : isUnknown(b) ? b : Math.max(a, b);
  }

  function positive(rate: number, trans: ITranslate): Known<number> {
    return rate > 0
      ? rate
      : { unknown: trans.__('its nominal rate is reported as 0') };
  }
}
