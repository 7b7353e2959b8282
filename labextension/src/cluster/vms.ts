import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { ENGLISH, ITranslate } from '../common/translate';
import { Machine } from '../resources/machine';
import { IHop, IVm } from '../schema/cluster';
import { IFinding } from '../schema/findings';
import { Known } from '../schema/known';
import { ISample } from '../schema/sample';

/** After this time without samples, the figures of all VMs are out of date. */
const SILENCE_MS = 5000;

/**
 * The VMs of one kernel's cluster, in the cluster's order.
 *
 * A VM keeps its histories while it stays in the cluster.
 */
export class VmList implements IDisposable {
  constructor(private _trans: ITranslate = ENGLISH) {}

  /** Whether the kernel has sent its list of VMs. */
  get isListed(): boolean {
    return this._isListed;
  }

  /** Each VM; the kernel's own one has no machine here, because the server reports it. */
  get entries(): readonly VmList.IEntry[] {
    return this._entries;
  }

  /** What the doctor found across them. */
  get findings(): readonly IFinding[] {
    return this._findings;
  }

  /** The weakest hop of the ranks' ring; `null` without a ring. */
  get weakest(): Known<IHop | null> {
    return this._weakest;
  }

  /** Emits when VMs are added or removed, or findings across them change; not for samples. */
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

  hearVms(
    vms: readonly IVm[],
    findings: readonly IFinding[],
    weakest: Known<IHop | null> = null
  ): void {
    this._entries = vms.map(vm => {
      const machine = vm.local ? null : this._machine(vm.name);
      machine?.setSnapshot(vm.snapshot, vm.findings);
      return { name: vm.name, machine };
    });
    this._findings = findings;
    this._weakest = weakest;
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
        // After a reload during a cell, the page cannot request the VMs.
        const unknown = this._trans.__('the kernel has not described it yet');
        machine.setSnapshot({ unknown }, []);
        this._entries = [...this._entries, { name, machine }];
      }
      machine.take(sample);
    }
    if (this._entries.length !== before) {
      this._changed.emit();
    }
  }

  /** Remove all VMs, because the cluster or its kernel has ended. */
  clear(): void {
    clearTimeout(this._timer);
    if (this._entries.length > 0 || this._isListed) {
      this._entries = [];
      this._findings = [];
      this._weakest = null;
      this._isListed = false;
      this._changed.emit();
    }
  }

  /** Stop the timeout: without a watch, missing samples are expected. */
  sleep(): void {
    clearTimeout(this._timer);
  }

  private _machine(name: string): Machine {
    const known = this._entries.find(entry => entry.name === name)?.machine;
    return known ?? new Machine({ key: `vm/${name}`, kind: 'vm', name });
  }

  private _onSilence(): void {
    const reason = this._trans.__(
      'the kernel has sent no figures for %1 s',
      SILENCE_MS / 1000
    );
    for (const { machine } of this._entries) {
      machine?.miss(reason);
    }
  }

  private _entries: readonly VmList.IEntry[] = [];
  private _findings: readonly IFinding[] = [];
  private _weakest: Known<IHop | null> = null;
  private _isListed = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _changed = new Signal<this, void>(this);
}

export namespace VmList {
  export interface IEntry {
    readonly name: string;
    /** `null` for the kernel's own machine. */
    readonly machine: Machine | null;
  }
}
