"""What a rule is: a check that returns cases, and the texts that make each case a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Generic, TypeVar

from workbench.doctor.facts import first_of, gpu_names
from workbench.doctor.finding import Finding, Severity
from workbench.resources import Gpu, Snapshot

T = TypeVar("T")
"""What a rule reads: a `Snapshot`, a `Sample`, or the snapshots of several VMs by name."""

Read = Callable[[Snapshot], str | None]
"""Returns a value of one VM in words; None if it is not known."""


@dataclass(frozen=True)
class Case:
    """One case in which a rule applies.

    Attributes
    ----------
    evidence, subject
        As in `Finding`.
    severity, why, cure, source
        Only where they differ from those of the rule.
    """

    evidence: str
    subject: str = "this VM"
    severity: Severity | None = None
    why: str | None = None
    cure: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A check with its texts; calling it returns the findings.

    Attributes
    ----------
    name
        Users see it in every finding; scripts select findings by it.
    check
        Returns a case for each thing that is wrong. An unknown value is never wrong.
    severity, why, cure, source
        As in `Finding`, for cases that have none of their own.
    """

    name: str
    check: Callable[[T], Iterable[Case]]
    severity: Severity
    why: str
    cure: str
    source: str

    @property
    def subject(self) -> str:
        """What the rule finds or compares, as the documentation of its check says it."""
        return " ".join((self.check.__doc__ or "").split("\n\n")[0].split())

    def __call__(self, evidence: T) -> Iterator[Finding]:
        """Yield a finding for each case."""
        for case in self.check(evidence):
            yield Finding(
                rule=self.name,
                severity=case.severity or self.severity,
                subject=case.subject,
                evidence=case.evidence,
                why=case.why or self.why,
                cure=case.cure or self.cure,
                source=case.source or self.source,
            )


def rule(
    severity: Severity,
    *,
    why: str = "",
    cure: str = "",
    source: str = "",
    name: str | None = None,
) -> Callable[[Callable[[T], Iterable[Case]]], Rule[T]]:
    """Make a check a rule, with the name of the check unless `name` is given."""

    def decorate(check: Callable[[T], Iterable[Case]]) -> Rule[T]:
        return Rule(name or check.__name__, check, severity, why, cure, source)

    return decorate


def each_gpu(check: Callable[[Gpu], Case | None]) -> Callable[[Snapshot], list[Case]]:
    """Turn a check of one GPU into a check of a VM."""

    @wraps(check)
    def check_all(snapshot: Snapshot) -> list[Case]:
        return group_gpus(snapshot, check)

    return check_all


def group_gpus(snapshot: Snapshot, check: Callable[[Gpu], Case | None]) -> list[Case]:
    """Check each GPU, and return equal cases as one case about ``"GPUs 0-3"``.

    MIG devices of one GPU count as that GPU.
    """
    found: dict[Case, list[int]] = {}
    for index, gpu in {gpu.index: gpu for gpu in snapshot.gpus}.items():
        case = check(gpu)
        if case is not None:
            found.setdefault(case, []).append(index)
    return [replace(case, subject=gpu_names(indices)) for case, indices in found.items()]


@dataclass(frozen=True)
class Mismatch:
    """A value that is not the same on all VMs.

    Attributes
    ----------
    vms
        Names of the VMs that differ from most; of all if no value is the most frequent.
    evidence
        Which VM has which value.
    values
        The value of each VM where it is known.
    """

    vms: str
    evidence: str
    values: Mapping[str, str]


def compare(snapshots: Mapping[str, Snapshot], read: Read) -> Mismatch | None:
    """Compare one value of all VMs; None if it is the same wherever it is known."""
    values = {vm: value for vm, one in snapshots.items() if (value := read(one)) is not None}
    vms_with: dict[str, list[str]] = {}
    for vm, value in values.items():
        vms_with.setdefault(value, []).append(vm)
    if len(vms_with) < 2:
        return None
    most = max(map(len, vms_with.values()))
    frequent = [value for value, vms in vms_with.items() if len(vms) == most]
    usual = frequent[0] if len(frequent) == 1 else None
    rare = {value: vms for value, vms in vms_with.items() if value != usual}
    parts = [f"{first_of(vms)} {_has(vms)} {value}" for value, vms in rare.items()]
    if usual is not None:
        vms = vms_with[usual]
        others = vms[0] if len(vms) == 1 else f"the other {len(vms)}"
        parts.append(f"{others} {_has(vms)} {usual}")
    return Mismatch(first_of(vm for vms in rare.values() for vm in vms), "; ".join(parts), values)


def mismatch_cases(snapshots: Mapping[str, Snapshot], read: Read) -> list[Case]:
    """Return one case if a value is not the same on all VMs."""
    mismatch = compare(snapshots, read)
    return [Case(mismatch.evidence, mismatch.vms)] if mismatch else []


def must_match(
    name: str, severity: Severity, read: Read, *, what: str, why: str, cure: str, source: str
) -> Rule[Mapping[str, Snapshot]]:
    """Return the rule that a value must be the same on all VMs; `what` names the value."""

    def check(snapshots: Mapping[str, Snapshot]) -> list[Case]:
        return mismatch_cases(snapshots, read)

    check.__doc__ = f"Compare {what}."
    return Rule(name, check, severity, why, cure, source)


def summary(values: list[str]) -> str | None:
    """Return what the devices of one VM have: ``"A"``, or ``"4 x A and 2 x B"``; None for none."""
    if len(set(values)) < 2:
        return values[0] if values else None
    return " and ".join(f"{values.count(value)} x {value}" for value in dict.fromkeys(values))


def _has(vms: list[str]) -> str:
    return "has" if len(vms) == 1 else "have"
