/** The texts of the drawing: names, descriptions, loads, verdicts. */
import { TranslationBundle } from '@jupyterlab/translation';

import { compact, linkRate, nicState, rateFigure } from '../common/format';
import { isUninspected, isUnknown, Known, orElse } from '../schema/known';
import { INic } from '../schema/snapshot';
import { IBranch, IDevice, IGraph } from './graph';
import { EdgeKind, ILoad } from './loads';
import { linksUp } from './nvlink';
import { IVerdict } from './verdict';

type Trans = TranslationBundle;

export function nameOf(device: IDevice, trans: Trans): string {
  switch (device.kind) {
    case 'no-gpu':
      return trans.__('no GPU');
    case 'unseen-gpu':
      return trans.__('GPU');
    default:
      return device.name;
  }
}

/** Like `nameOf`, for a box: below its GPU's bar, `0:1` is sufficient for a MIG device. */
export function boxName(device: IDevice, trans: Trans): string {
  return nameOf(device, trans).replace(/^MIG /, '');
}

/** The short text after the name in its box: a profile, a product, a rate. */
export function shortDetail(
  device: IDevice,
  why: string,
  trans: Trans
): string {
  const { gpu, nic } = device;
  if (device.kind === 'no-gpu') {
    return why;
  }
  if (device.kind === 'unseen-gpu') {
    return trans.__('no driver');
  }
  if (device.kind === 'unclear') {
    return trans.__('unknown kind');
  }
  if (gpu) {
    const name = orElse(gpu.name, '')
      .replace(/^(NVIDIA|GRID) /, '')
      .replace(/^.* MIG /, '');
    // A narrow box omits words that do not fit: `A100` of `A100 SXM4 40GB`.
    return orElse(gpu.vgpu_profile, name.replace(/-/g, ' '));
  }
  const rate = isUnknown(nic!.rate_gbps) ? '' : linkRate(nic!.rate_gbps);
  const down = nic!.state === 'down' ? nicState(nic!, trans) : '';
  const plain = isPlain(nic!) ? trans.__('plain') : '';
  return [down, rate, plain].filter(Boolean).join('\u00a0·\u00a0');
}

/** Whether it is known to have no RDMA; a topology file does not show this. */
function isPlain(nic: INic): boolean {
  return nic.kind === 'physical' && !isUninspected(nic.rdma_device, nic.state);
}

/** `GPU 0 · NVIDIA H100 80GB HBM3 · passthrough`. */
export function whatItIs(device: IDevice, why: string, trans: Trans): string {
  const { gpu, nic } = device;
  if (device.kind === 'no-gpu') {
    return why;
  }
  if (device.kind === 'unseen-gpu') {
    return trans.__('found by the kernel, but not by the NVIDIA driver');
  }
  if (device.kind === 'unclear') {
    return trans.__('GPU, NIC or other device: %1', device.unclear);
  }
  if (gpu) {
    const name = orElse(
      gpu.vgpu_profile,
      orElse(gpu.name, trans.__('unknown model'))
    );
    return [name, formOf(gpu.form, trans)].filter(Boolean).join(' · ');
  }
  const rdma =
    nic!.kind === 'rdma'
      ? [trans.__('RDMA'), orElse(nic!.link_layer, '')]
      : [
          isPlain(nic!)
            ? trans.__('plain NIC, no RDMA')
            : trans.__('RDMA unknown')
        ];
  const own = nic!.name === device.name ? '' : nic!.name;
  const rate = isUnknown(nic!.rate_gbps)
    ? trans.__('unknown rate')
    : linkRate(nic!.rate_gbps);
  return [own, ...rdma, rate, nicState(nic!, trans)]
    .filter(Boolean)
    .join(' · ');
}

/** `NUMA node 0 · 0000:53:00.0`. */
export function whereItIs(device: IDevice, trans: Trans): string {
  const numa = isUnknown(device.numa)
    ? trans.__('NUMA node unknown')
    : trans.__('NUMA node %1', device.numa);
  return [numa, device.address].filter(Boolean).join(' · ');
}

export function nvlinkWords(
  device: IDevice,
  graph: IGraph,
  trans: Trans
): string {
  if (!device.gpu) {
    return '';
  }
  const links = linksUp(device);
  const peers = graph.pairs
    .filter(one => one.a === device.id || one.b === device.id)
    .map(one => (one.a === device.id ? one.b : one.a))
    .map(id => graph.devices.find(one => one.id === id)!.name);
  const inFabric = graph.fabric?.members.some(one => one.id === device.id);
  const to = inFabric
    ? [graph.fabric!.switches ? trans.__('NVSwitch') : trans.__('all others')]
    : peers;
  if (to.length === 0) {
    return isUnknown(links)
      ? trans.__('NVLink: %1', links.unknown)
      : links.up > 0
        ? trans.__('NVLink: not connected to a GPU of this VM')
        : links.all > 0
          ? trans.__('NVLink: all %1 links are down', links.all)
          : '';
  }
  const count = isUnknown(links)
    ? ''
    : links.up < links.all
      ? trans.__('%1 of %2 links up', links.up, links.all)
      : trans._n('%1 link', '%1 links', links.all);
  const trouble = inFabric ? graph.fabric!.trouble : '';
  return [
    trans.__('NVLink to %1', to.join(', ')),
    count,
    trouble && trans.__('fabric: %1', trouble)
  ]
    .filter(Boolean)
    .join(' · ');
}

/** `mlx5_0: PIX, GPUDirect RDMA: PIX is within PXB, NCCL's limit`. */
export function verdictWords(
  one: IVerdict,
  other: string,
  trans: Trans
): string {
  const distance = isUnknown(one.distance)
    ? trans.__('unknown distance')
    : one.distance;
  return trans.__('%1: %2, %3', other, distance, possibleWords(one.possible, trans)); // prettier-ignore
}

export function possibleWords(possible: Known<boolean>, trans: Trans): string {
  return isUnknown(possible)
    ? trans.__('GPUDirect RDMA unknown')
    : possible
      ? trans.__('GPUDirect RDMA')
      : trans.__('no GPUDirect RDMA');
}

const GIGA = 1e9;

/** `NVLink 120 of 450 GB/s`; or why it is unknown. */
export function loadWords(kind: EdgeKind, load: ILoad, trans: Trans): string {
  const name = kindName(kind, trans);
  const { bytes_per_s: bytes, nominal_bytes_per_s: nominal } = load;
  if (isUnknown(bytes)) {
    return trans.__('%1 load unknown: %2', name, bytes.unknown);
  }
  if (kind === 'network') {
    const { number, unit } = rateFigure(bytes);
    return isUnknown(nominal)
      ? trans.__('%1 %2 %3, nominal rate unknown', name, number, unit)
      : trans.__('%1 %2 %3 of %4G', name, number, unit, compact((nominal * 8) / GIGA)); // prettier-ignore
  }
  const now = compact(bytes / GIGA);
  return isUnknown(nominal)
    ? trans.__('%1 %2 GB/s, nominal rate unknown', name, now)
    : trans.__(
        '%1 %2 of %3 GB/s in each direction',
        name,
        now,
        compact(nominal / GIGA)
      );
}

/** For a label that is read aloud: rounded, so that it does not change constantly. */
export function roughLoad(kind: EdgeKind, load: ILoad, trans: Trans): string {
  const name = kindName(kind, trans);
  if (isUnknown(load.share)) {
    return trans.__('%1 load unknown', name);
  }
  return load.share === 0
    ? trans.__('%1 idle', name)
    : trans.__('%1 about %2 %', name, Math.max(5, Math.round(load.share * 20) * 5)); // prettier-ignore
}

export function kindName(kind: EdgeKind, trans: Trans): string {
  const names: Record<EdgeKind, string> = {
    pcie: trans.__('PCIe'),
    nvlink: trans.__('NVLink'),
    network: trans.__('network')
  };
  return names[kind];
}

export function branchName(branch: IBranch, trans: Trans): string {
  switch (branch.kind) {
    case 'node':
      return isUnknown(branch.number)
        ? trans.__('CPU')
        : trans.__('NUMA %1', branch.number);
    case 'bridge':
      return '';
    case 'switch':
      return trans.__('switch');
    case 'board':
      return trans.__('GPU %1', orElse(branch.number, 0));
    case 'apart':
      return trans.__('other');
  }
}

export function branchTitle(
  branch: IBranch,
  graph: IGraph,
  trans: Trans
): string {
  switch (branch.kind) {
    case 'node':
      return isUnknown(branch.number)
        ? trans.__('CPUs; %1', branch.number.unknown || noNumaReason(trans))
        : trans.__('CPUs of NUMA node %1: a root complex', branch.number);
    case 'bridge':
      return trans.__('PCIe host bridge');
    case 'switch':
      return trans.__('PCIe switch');
    case 'board':
      return trans.__('partitioned into MIG devices');
    case 'apart':
      return graph.source === 'file'
        ? trans.__('not in the topology file: NCCL adds it from sysfs')
        : trans.__('position in the PCIe tree unknown');
  }
}

export function sourceWords(graph: IGraph, trans: Trans): string {
  switch (graph.source) {
    case 'file':
      return trans.__('PCIe from the topology file of NCCL: %1', graph.origin);
    case 'sysfs':
      return trans.__('PCIe from the kernel; no topology file');
    case 'none':
      return trans.__('PCIe unknown: %1', graph.origin);
  }
}

function noNumaReason(trans: Trans): string {
  return trans.__('neither the kernel nor a topology file reports a NUMA node');
}

function formOf(form: Known<string>, trans: Trans): string {
  const forms: Record<string, string> = {
    whole: trans.__('full GPU'),
    passthrough: trans.__('passthrough'),
    vgpu: trans.__('vGPU'),
    mig: trans.__('MIG device')
  };
  return isUnknown(form) ? trans.__('unknown form') : (forms[form] ?? form);
}
