/** The texts of a machine's card. */
import { TranslationBundle } from '@jupyterlab/translation';

import { linkRate, nicState, roundGib } from '../common/format';
import { isUninspected, isUnknown, Known, orElse } from '../schema/known';
import { IGpu, INic, ISnapshot, IVgpuProfile } from '../schema/snapshot';

/** Most kinds of GPUs in one line. */
const MAX_NAMES = 3;

/** The line of a closed card: GPUs, the main NIC, CPUs, memory. */
export function oneLine(snapshot: ISnapshot, trans: TranslationBundle): string {
  const { host, gpus, nics } = snapshot;
  const parts = [gpuPart(gpus, trans), nicPart(shownNics(nics), trans)];
  if (!isUnknown(host.cpus)) {
    parts.push(trans._n('%1 CPU', '%1 CPUs', host.cpus));
  }
  if (!isUnknown(host.memory_bytes)) {
    parts.push(roundGib(host.memory_bytes));
  }
  return parts.join(' · ');
}

/** Whether the machine is described by a topology file only: places and links. */
export function isPartial(snapshot: ISnapshot): boolean {
  return snapshot.probes.host.status === 'absent';
}

/** What an open card does not show elsewhere: the kind of machine. */
export function machineLine(
  { host }: ISnapshot,
  trans: TranslationBundle
): string {
  const none = host.hypervisor === 'none';
  const hypervisor = none
    ? trans.__('bare metal')
    : orElse(host.hypervisor, '');
  return [hypervisor, orElse(host.os, '')].filter(Boolean).join(' · ');
}

/** NICs for traffic between VMs: all except virtual ones, RDMA first. */
export function shownNics(nics: readonly INic[]): INic[] {
  const real = nics.filter(nic => nic.kind !== 'virtual');
  return [...real].sort(
    (a, b) => Number(b.kind === 'rdma') - Number(a.kind === 'rdma')
  );
}

/** `A100-40C` or the product's name, followed by the form of the GPU. */
export function gpuDetail(gpu: IGpu, trans: TranslationBundle): string {
  const forms: Record<string, string> = {
    whole: '',
    passthrough: trans.__('passthrough'),
    vgpu: trans.__('vGPU'),
    mig: trans.__('MIG')
  };
  const form = orElse(gpu.form, '');
  return [gpuName(gpu, trans), forms[form] ?? form].filter(Boolean).join(' · ');
}

/** A description of a vGPU's profile. */
export function profileLine(
  vgpu: IVgpuProfile,
  trans: TranslationBundle
): string {
  const series: Record<string, string> = {
    A: trans.__('for applications'),
    B: trans.__('for desktops'),
    C: trans.__('for compute'),
    Q: trans.__('for workstations')
  };
  return [
    share(vgpu, trans),
    orElse(vgpu.slices, 0) > 0
      ? trans._n('on %1 MIG slice', 'on %1 MIG slices', orElse(vgpu.slices, 0))
      : '',
    series[vgpu.series] ?? '',
    permits(vgpu.p2p, trans.__('P2P possible'), trans.__('no P2P')),
    permits(
      vgpu.gpudirect,
      trans.__('GPUDirect possible'),
      trans.__('no GPUDirect')
    )
  ]
    .filter(Boolean)
    .join(' · ');
}

/** A duration in its largest unit, rounded down. */
export function duration(seconds: number, trans: TranslationBundle): string {
  if (seconds >= 2 * 3600) {
    return trans.__('%1 h', Math.floor(seconds / 3600));
  }
  return seconds >= 120
    ? trans.__('%1 min', Math.floor(seconds / 60))
    : trans.__('%1 s', Math.floor(seconds));
}

/** The kind of a NIC: its RDMA device and link layer, if any. */
export function nicDetail(nic: INic, trans: TranslationBundle): string {
  const plain = isUninspected(nic.rdma_device, nic.state)
    ? ''
    : trans.__('plain NIC');
  const device = orElse(nic.rdma_device, plain);
  const shown = device === nic.name ? '' : device;
  const layer = nic.kind === 'rdma' ? orElse(nic.link_layer, '') : '';
  return [shown, orElse(nic.driver, ''), layer, nicState(nic, trans)]
    .filter(Boolean)
    .join(' · ');
}

function share(vgpu: IVgpuProfile, trans: TranslationBundle): string {
  const { board, board_memory_gb: all, memory_gb: own } = vgpu;
  if (isUnknown(all)) {
    return trans.__('%1 GB of an %2', own, board);
  }
  return orElse(vgpu.whole_frame_buffer, false)
    ? trans.__('all %1 GB of an %2', all, board)
    : trans.__('%1 of the %2 GB of an %3', own, all, board);
}

function permits(value: Known<boolean>, yes: string, no: string): string {
  return isUnknown(value) ? '' : value ? yes : no;
}

/** The profile of a vGPU or MIG device, or else the product without the vendor. */
function gpuName(gpu: IGpu, trans: TranslationBundle): string {
  const name = orElse(gpu.name, trans.__('GPU of unknown name'))
    .replace(/^NVIDIA /, '')
    .replace(/^(.*) MIG (\S+)$/, '$2 · $1');
  return orElse(gpu.vgpu_profile, name);
}

function gpuPart(gpus: readonly IGpu[], trans: TranslationBundle): string {
  if (gpus.length === 0) {
    return trans.__('no GPU');
  }
  const counts = new Map<string, number>();
  for (const gpu of gpus) {
    const name = gpuName(gpu, trans);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const names = [...counts]
    .slice(0, MAX_NAMES)
    .map(([name, n]) => (n === 1 ? name : `${name} ×${n}`));
  if (counts.size > MAX_NAMES) {
    names.push(trans.__('%1 further kinds', counts.size - MAX_NAMES));
  }
  return names.join(', ');
}

function nicPart(nics: readonly INic[], trans: TranslationBundle): string {
  if (nics.length === 0) {
    return trans.__('no NIC');
  }
  const [first, ...others] = nics;
  const rate = isUnknown(first.rate_gbps)
    ? ''
    : ` ${linkRate(first.rate_gbps)}`;
  const more = others.length > 0 ? ` +${others.length}` : '';
  return `${orElse(first.rdma_device, first.name)}${rate}${more}`;
}
