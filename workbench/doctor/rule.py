"""The class of rules: a check that returns cases, and the texts that make each case a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Generic, TypeVar

from workbench.doctor.facts import first_of, gpu_names
from workbench.doctor.finding import Finding, Severity
from workbench.resources import Gpu, Snapshot

T = TypeVar("T")
"""The input of a rule: a `Snapshot`, a `Sample`, or the snapshots of several VMs by name."""

Read = Callable[[Snapshot], str | None]
"""A function that returns a value of one VM in words; None if the value is unknown."""


@dataclass(frozen=True)
class Case:
    """One case in which a rule applies.

    Attributes
    ----------
    evidence, subject
        As in `Finding`.
    severity, why, fix, source
        Values for this case, where they differ from the values of the rule.
    """

    evidence: str
    subject: str = "this VM"
    severity: Severity | None = None
    why: str | None = None
    fix: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A check with its texts; calling it returns the findings.

    Attributes
    ----------
    name
        Users see it in every finding, and scripts select findings by it.
    check
        Returns a case for each problem. An unknown value is never a problem.
    severity, why, fix, source
        As in `Finding`. They apply to cases that do not set them.
    """

    name: str
    check: Callable[[T], Iterable[Case]]
    severity: Severity
    why: str
    fix: str
    source: str

    @property
    def subject(self) -> str:
        """What the rule finds or compares, from the docstring of its check."""
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
                fix=case.fix or self.fix,
                source=case.source or self.source,
            )


def rule(
    severity: Severity,
    *,
    why: str = "",  # language: a field of findings
    fix: str = "",
    source: str = "",
    name: str | None = None,
) -> Callable[[Callable[[T], Iterable[Case]]], Rule[T]]:
    """Turn a check into a rule; its name is the name of the check unless `name` is given.

    Examples
    --------
    >>> @rule("info", why="Training needs a GPU.", fix="Ask for one.", source="PyTorch")
    ... def no_gpu(gpus):
    ...     return [] if gpus else [Case("no GPU")]
    >>> [(finding.rule, finding.evidence) for finding in no_gpu([])]
    [('no_gpu', 'no GPU')]
    >>> list(no_gpu(["GPU 0"]))
    []
    """

    def decorate(check: Callable[[T], Iterable[Case]]) -> Rule[T]:
        return Rule(name or check.__name__, check, severity, why, fix, source)

    return decorate


def each_gpu(check: Callable[[Gpu], Case | None]) -> Callable[[Snapshot], list[Case]]:
    """Turn a check of one GPU into a check of a VM."""

    @wraps(check)
    def check_all(snapshot: Snapshot) -> list[Case]:
        return group_gpus(snapshot, check)

    return check_all


def group_gpus(snapshot: Snapshot, check: Callable[[Gpu], Case | None]) -> list[Case]:
    """Check each GPU, and merge equal cases into one case about ``"GPUs 0-3"``.

    MIG devices of one GPU count as that GPU.
    """
    indices_by_case: dict[Case, list[int]] = {}
    for index, gpu in {gpu.index: gpu for gpu in snapshot.gpus}.items():
        case = check(gpu)
        if case is not None:
            indices_by_case.setdefault(case, []).append(index)
    return [replace(case, subject=gpu_names(indices)) for case, indices in indices_by_case.items()]


@dataclass(frozen=True)
class Mismatch:
    """A value that differs between VMs.

    Attributes
    ----------
    vms
        Names of the VMs that differ from most VMs; all VMs if no value is the most frequent.
    evidence
        The values of the VMs in words.
    values
        The known values by VM.
    """

    vms: str
    evidence: str
    values: Mapping[str, str]


def compare(snapshots: Mapping[str, Snapshot], read: Read) -> Mismatch | None:
    """Compare a value of all VMs; return None if all known values are equal."""
    values = {
        vm: value for vm, snapshot in snapshots.items() if (value := read(snapshot)) is not None
    }
    vms_with: dict[str, list[str]] = {}
    for vm, value in values.items():
        vms_with.setdefault(value, []).append(vm)
    if len(vms_with) < 2:
        return None
    max_vms = max(map(len, vms_with.values()))
    frequent = [value for value, vms in vms_with.items() if len(vms) == max_vms]
    usual_value = frequent[0] if len(frequent) == 1 else None
    rare_vms = {value: vms for value, vms in vms_with.items() if value != usual_value}
    parts = [f"{first_of(vms)} {_has(vms)} {value}" for value, vms in rare_vms.items()]
    if usual_value is not None:
        vms = vms_with[usual_value]
        others = vms[0] if len(vms) == 1 else f"the other {len(vms)}"
        parts.append(f"{others} {_has(vms)} {usual_value}")
    return Mismatch(
        first_of(vm for vms in rare_vms.values() for vm in vms), "; ".join(parts), values
    )


def mismatch_cases(snapshots: Mapping[str, Snapshot], read: Read) -> list[Case]:
    """Return one case if a value differs between VMs, otherwise none."""
    mismatch = compare(snapshots, read)
    return [Case(mismatch.evidence, mismatch.vms)] if mismatch else []


def must_match(
    name: str,
    severity: Severity,
    read: Read,
    *,
    compared: str,
    why: str,  # language: a field of findings
    fix: str,
    source: str,
) -> Rule[Mapping[str, Snapshot]]:
    """Return a rule that a value must be the same on all VMs; `compared` names the value."""

    def check(snapshots: Mapping[str, Snapshot]) -> list[Case]:
        return mismatch_cases(snapshots, read)

    check.__doc__ = f"Compare {compared}."
    return Rule(name, check, severity, why, fix, source)


def summary(values: list[str]) -> str | None:
    """Summarize the values of the devices of one VM; return None without values.

    Examples
    --------
    >>> summary(["A100", "A100"])
    'A100'
    >>> summary(["A100", "A100", "H100"])
    '2 x A100 and 1 x H100'
    """
    if len(set(values)) < 2:
        return values[0] if values else None
    return " and ".join(f"{values.count(value)} x {value}" for value in dict.fromkeys(values))


def _has(vms: list[str]) -> str:
    return "has" if len(vms) == 1 else "have"
