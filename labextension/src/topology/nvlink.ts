/** Which GPUs are connected by NVLink, by the driver or else the topology file. */
import { ENGLISH, ITranslate } from '../common/translate';
import { isUnknown, Known, orElse } from '../schema/known';
import { INvlink, IPciTree, ISnapshot } from '../schema/snapshot';
import { IAllToAll, IDevice, IPair } from './graph';

const NVSWITCH_CLASS = '0x0680';

export interface IJoined {
  readonly pairs: readonly IPair[];
  readonly fabric: IAllToAll | null;
}

export function nvlinksOf(
  snapshot: ISnapshot,
  gpus: readonly IDevice[],
  tree: IPciTree | null,
  trans: ITranslate = ENGLISH
): IJoined {
  const byDriver = Private.ofDriver(gpus);
  if (byDriver.pairs.length > 0 || byDriver.fabric) {
    return byDriver;
  }
  const byFile = Private.ofFile(gpus, tree);
  if (byFile.pairs.length > 0 || byFile.fabric) {
    return byFile;
  }
  return Private.ofPairs(snapshot, gpus, trans);
}

/** The number of active links of a GPU, and of all its links. */
export function linksUp(device: IDevice): Known<{ up: number; all: number }> {
  const nvlink = device.gpu?.nvlink ?? { unknown: '' };
  if (isUnknown(nvlink)) {
    return nvlink;
  }
  if (isUnknown(nvlink.links)) {
    return nvlink.links;
  }
  const states = nvlink.links.map(one => one.state);
  return (
    states.find(isUnknown) ?? {
      up: states.filter(one => one === 'up').length,
      all: states.length
    }
  );
}

namespace Private {
  export function ofDriver(gpus: readonly IDevice[]): IJoined {
    const counts = new Map<string, number>();
    const members: { id: string; links: Known<number> }[] = [];
    for (const gpu of gpus) {
      const up = links(gpu).filter(one => one.state === 'up');
      const toSwitch = up.filter(one => one.peer === 'switch').length;
      if (toSwitch > 0) {
        members.push({ id: gpu.id, links: toSwitch });
      }
      for (const link of up.filter(one => one.peer === 'gpu')) {
        const peer = gpus.find(one => one.address === link.peer_pci_address);
        // Both ends report a link, but a peer may be in another VM.
        if (peer && gpus.indexOf(gpu) < gpus.indexOf(peer)) {
          const key = `${gpu.id} ${peer.id}`;
          counts.set(key, (counts.get(key) ?? 0) + 1);
        }
      }
    }
    return { pairs: pairsOf(counts), fabric: fabricOf(gpus, members) };
  }

  export function ofFile(
    gpus: readonly IDevice[],
    tree: IPciTree | null
  ): IJoined {
    const counts = new Map<string, Known<number>>();
    const members: { id: string; links: Known<number> }[] = [];
    for (const link of tree?.nvlinks ?? []) {
      const gpu = gpus.find(one => one.address === link.gpu);
      const peer = gpus.find(one => one.address === link.peer);
      if (gpu && peer) {
        const key = [gpu.id, peer.id].sort().join(' ');
        counts.set(key, link.count);
      } else if (
        gpu &&
        orElse(link.peer_class, '').startsWith(NVSWITCH_CLASS)
      ) {
        const known = members.find(one => one.id === gpu.id);
        if (known) {
          known.links = plus(known.links, link.count);
        } else {
          members.push({ id: gpu.id, links: link.count });
        }
      }
    }
    return { pairs: pairsOf(counts), fabric: fabricOf([], members) };
  }

  /** Used without reported links: which GPUs have P2P over NVLink, by the driver. */
  export function ofPairs(
    snapshot: ISnapshot,
    gpus: readonly IDevice[],
    trans: ITranslate
  ): IJoined {
    const why = { unknown: trans.__('the driver reports NVLink between them, but not the number of links') }; // prettier-ignore
    const joined = orElse(snapshot.gpu_pairs, []).filter(
      pair => pair.p2p_nvlink === 'ok'
    );
    const found = new Map<string, Known<number>>();
    const members = new Map<string, Known<number>>();
    for (const pair of joined) {
      const [a, b] = [pair.first, pair.second].map(index =>
        gpus.find(one => one.gpu?.index === index && one.gpu.form !== 'mig')
      );
      if (a && b) {
        found.set(`${a.id} ${b.id}`, why);
        members.set(a.id, why).set(b.id, why);
      }
    }
    const n = members.size;
    if (n > 2 && found.size === (n * (n - 1)) / 2) {
      const all = [...members].map(([id, links]) => ({ id, links }));
      return {
        pairs: [],
        fabric: { switches: false, members: all, trouble: '' }
      };
    }
    return { pairs: pairsOf(found), fabric: null };
  }

  function links(gpu: IDevice): readonly INvlink[] {
    const nvlink = gpu.gpu?.nvlink;
    return nvlink === undefined || isUnknown(nvlink)
      ? []
      : orElse(nvlink.links, []);
  }

  function pairsOf(counts: Map<string, Known<number>>): IPair[] {
    return [...counts].map(([key, count]) => {
      const [a, b] = key.split(' ');
      return { id: `pair-${a}-${b}`, a, b, links: count };
    });
  }

  function fabricOf(
    gpus: readonly IDevice[],
    members: { id: string; links: Known<number> }[]
  ): IAllToAll | null {
    if (members.length === 0) {
      return null;
    }
    const troubles = gpus.map(trouble).filter(Boolean);
    return { switches: true, members, trouble: troubles[0] ?? '' };
  }

  function trouble(device: IDevice): string {
    const nvlink = device.gpu?.nvlink;
    if (
      nvlink === undefined ||
      isUnknown(nvlink) ||
      isUnknown(nvlink.fabric) ||
      isUnknown(nvlink.fabric.state)
    ) {
      return '';
    }
    const { state, status } = nvlink.fabric;
    if (state !== 'completed') {
      return state;
    }
    return isUnknown(status) || status === 'success' ? '' : status;
  }

  function plus(a: Known<number>, b: Known<number>): Known<number> {
    return isUnknown(a) ? a : isUnknown(b) ? b : a + b;
  }
}
