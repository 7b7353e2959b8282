import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Machine } from '../resources/machine';
import { IVm } from '../schema/cluster';
import { IFinding } from '../schema/findings';
import { Known } from '../schema/known';
import { ISample } from '../schema/sample';

/** Without samples for so long, the figures of all VMs are old. */
const SILENCE_MS = 5000;

/**
 * The VMs of one kernel's cluster, in the cluster's order.
 *
 * A VM keeps its histories while it stays in the cluster.
 */
export class VmList implements IDisposable {
  /** Whether the kernel has sent its list of VMs. */
  get isListed(): boolean {
    return this._isListed;
  }

  /** Each VM; the kernel's own one has no machine here, as the server reports it. */
  get entries(): readonly VmList.IEntry[] {
    return this._entries;
  }

  /** What the doctor found across them. */
  get findings(): readonly IFinding[] {
    return this._findings;
  }

  /** Emits where VMs come or go, and where findings across them do; not for samples. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
    Signal.clearData(this);
  }

  hearVms(vms: readonly IVm[], findings: readonly IFinding[]): void {
    this._entries = vms.map(vm => {
      const machine = vm.local ? null : this._machine(vm.name);
      machine?.setSnapshot(vm.snapshot, vm.findings);
      return { name: vm.name, machine };
    });
    this._findings = findings;
    this._isListed = true;
    this._changed.emit();
  }

  hearSamples(samples: Readonly<Record<string, Known<ISample>>>): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._onSilence(), SILENCE_MS);
    const before = this._entries.length;
    for (const [name, sample] of Object.entries(samples)) {
      const machine = this._machine(name);
      if (
        !this._entries.some(entry => entry.name === name) &&
        !this._isListed
      ) {
        machine.setSnapshot(Private.NOT_ASKED, []);
        this._entries = [...this._entries, { name, machine }];
      }
      machine.take(sample);
    }
    if (this._entries.length !== before) {
      this._changed.emit();
    }
  }

  /** The cluster is gone, or the kernel that reported it. */
  clear(): void {
    clearTimeout(this._timer);
    if (this._entries.length > 0 || this._isListed) {
      this._entries = [];
      this._findings = [];
      this._isListed = false;
      this._changed.emit();
    }
  }

  /** Nobody listens from now on: that is no silence of the kernel. */
  sleep(): void {
    clearTimeout(this._timer);
  }

  private _machine(name: string): Machine {
    const known = this._entries.find(entry => entry.name === name)?.machine;
    return known ?? new Machine({ key: `vm/${name}`, kind: 'vm', name });
  }

  private _onSilence(): void {
    for (const { machine } of this._entries) {
      machine?.miss('the kernel has sent no figures for 5 s');
    }
  }

  private _entries: readonly VmList.IEntry[] = [];
  private _findings: readonly IFinding[] = [];
  private _isListed = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _changed = new Signal<this, void>(this);
}

export namespace VmList {
  export interface IEntry {
    readonly name: string;
    /** `null`: the kernel's own machine. */
    readonly machine: Machine | null;
  }
}

namespace Private {
  /** After a reload in mid-cell the page hears samples, but cannot ask which VMs these are. */
  export const NOT_ASKED = {
    unknown: 'the kernel has not described it yet'
  };
}
