"""Which VMs are unlike the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from workbench.doctor.several import first_of
from workbench.resources import Snapshot, Unknown

Look = Callable[[Snapshot], str | None]
"""Says what a VM has, in the words of a finding; None where that is not known."""


@dataclass(frozen=True)
class Odd:
    """VMs that differ.

    Attributes
    ----------
    vms
        Their names: those that are not like most, or all where no value has most.
    evidence
        Who has what.
    has
        What was found, by VM.
    """

    vms: str
    evidence: str
    has: Mapping[str, str]


def odd(snapshots: Mapping[str, Snapshot], look: Look) -> Iterator[Odd]:
    """Compare one thing of all VMs; nothing where those that tell are alike."""
    looked = ((vm, look(snapshot)) for vm, snapshot in snapshots.items())
    has = {vm: what for vm, what in looked if what is not None}
    groups: dict[str, list[str]] = {}
    for vm, what in has.items():
        groups.setdefault(what, []).append(vm)
    if len(groups) < 2:
        return
    most = max(map(len, groups.values()))
    usual = [what for what, vms in groups.items() if len(vms) == most]
    rare = dict(groups) if len(usual) > 1 else {k: v for k, v in groups.items() if k != usual[0]}
    told = [f"{first_of(vms)} {_has(vms)} {what}" for what, vms in rare.items()]
    if len(usual) == 1:
        vms = groups[usual[0]]
        who = vms[0] if len(vms) == 1 else f"the other {len(vms)}"
        told.append(f"{who} {_has(vms)} {usual[0]}")
    yield Odd(first_of(vm for vms in rare.values() for vm in vms), "; ".join(told), has)


def same(values: list[str]) -> str | None:
    """Write what one VM's devices have: ``"4 x A"``, ``"A"``, ``"A and B"``; None for none."""
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    if not counts:
        return None
    if len(counts) == 1:
        return values[0]
    return " and ".join(f"{count} x {value}" for value, count in counts.items())


def known(value: object) -> str | None:
    """Write a value; None where it is unknown."""
    return None if isinstance(value, Unknown) else str(value)


def _has(vms: list[str]) -> str:
    return "has" if len(vms) == 1 else "have"
