"""Findings as text, as wide as the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from workbench.doctor.across import ACROSS
from workbench.doctor.finding import SEVERITIES, Finding
from workbench.doctor.reading import is_topology_file, is_unknown, unclear_devices
from workbench.doctor.rules import RULES
from workbench.resources import Snapshot, Unknown

_UNKNOWN_WIDTH = 100
_WIDEST = 120
"""Longer lines are hard to read, however wide the terminal is."""
_NARROWEST = 40
_LABEL = "  {:<10}"
_ONLY_PLACES = (
    "A file has places, and no drivers, ports or limits: for those run "
    "`workbench doctor` in the VM itself."
)
_KEPT = "\x00"  # a blank inside of a command


def terminal_width() -> int:
    """Give the columns to write in: the terminal's, 100 where that is not known."""
    columns = shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return max(_NARROWEST, min(columns, _WIDEST))


def paragraphs(finding: Finding, width: int | None = None) -> str:
    """Write one finding: what it is about, then a labelled paragraph for each part.

    Parameters
    ----------
    finding
        Of `diagnose` or `diagnose_all`.
    width
        Columns; the terminal's by default. A command in backticks is not broken unless
        it is longer than a line.
    """
    parts = {
        "evidence": finding.evidence,
        "why": finding.why,
        "cure": finding.cure,
        "source": f"{finding.source} [{finding.rule}]",
    }
    width = terminal_width() if width is None else width
    head = f"{finding.severity.upper()}  {finding.subject}"
    return "\n".join([head, *(_paragraph(label, text, width) for label, text in parts.items())])


def describe(snapshot: Snapshot, findings: Sequence[Finding], width: int | None = None) -> str:
    """Write a VM's findings: first how it stands, then each of them."""
    said = _filled(verdict(snapshot, findings), width)
    return "\n\n".join([said, *(paragraphs(one, width) for one in findings)])


def describe_all(
    snapshots: Mapping[str, Snapshot],
    findings: Mapping[str, Sequence[Finding]],
    across: Sequence[Finding],
    width: int | None = None,
) -> str:
    """Write the findings about several VMs: between them first, then VM by VM."""
    said = _filled(across_verdict(snapshots, across), width)
    parts = [said, *(paragraphs(one, width) for one in across)]
    for vm, snapshot in snapshots.items():
        parts.append(_filled(verdict(snapshot, findings[vm], vm), width))
        parts += [paragraphs(one, width) for one in findings[vm]]
    return "\n\n".join(parts)


def verdict(snapshot: Snapshot, findings: Sequence[Finding], name: str | None = None) -> str:
    """Say what was looked at (by its host's name, if no other), and how it stands."""
    host = snapshot.host.hostname
    if name is None:
        name = "a VM that a topology file describes" if isinstance(host, Unknown) else host
    unclear = unclear_devices(snapshot)
    parts = [_gpus(snapshot), _nics(snapshot)]
    seen = ", ".join([*parts, f"{_count(unclear, 'device')} of unknown kind"] if unclear else parts)
    if is_topology_file(snapshot):
        found = _counts(findings) or "nothing wrong"
        return f"{name} ({seen}): {found} in what the file says. {_ONLY_PLACES}"
    return f"{name} ({seen}): {_how_many(findings, len(RULES))}"


def across_verdict(snapshots: Mapping[str, Snapshot], across: Sequence[Finding]) -> str:
    """Say in one line how VMs stand to each other."""
    vms = f"{_count(list(snapshots), 'VM')} compared"
    files = sum(map(is_topology_file, snapshots.values()))
    if files == 0:
        return f"{vms}: {_how_many(across, len(ACROSS))}"
    known = f"only a topology file is known of {'all' if files == len(snapshots) else files}"
    return f"{vms}: {_counts(across) or 'nothing unlike'} in what is known ({known} of them)."


def _gpus(snapshot: Snapshot) -> str:
    if not snapshot.gpus and is_unknown(snapshot, "gpus"):
        return "GPUs unknown"
    whole = {gpu.index for gpu in snapshot.gpus if gpu.form != "mig"}
    parts = [gpu.index for gpu in snapshot.gpus if gpu.form == "mig"]
    cut = f"{_count(parts, 'MIG device')} of {_count(list(set(parts)), 'GPU')}"
    if not parts:
        return _count(list(whole), "GPU")
    return f"{_count(list(whole), 'GPU')} and {cut}" if whole else cut


def _nics(snapshot: Snapshot) -> str:
    unknown = not snapshot.nics and is_unknown(snapshot, "nics")
    return "NICs unknown" if unknown else _count(snapshot.nics, "NIC")


def _how_many(findings: Iterable[Finding], rules: int) -> str:
    counts = _counts(findings)
    return f"{counts}." if counts else f"none of {rules} rules found anything wrong."


def _counts(findings: Iterable[Finding]) -> str:
    found = [one.severity for one in findings]
    words = {"info": "to know"}
    counts = [
        f"{found.count(one)} {words.get(one, one)}"
        + ("s" if found.count(one) > 1 and one not in words else "")
        for one in SEVERITIES
        if one in found
    ]
    return ", ".join(counts)


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things) or 'no'} {what}{'' if len(things) == 1 else 's'}"


def _filled(line: str, width: int | None) -> str:
    return _wrapped(line, terminal_width() if width is None else width, "", "")


def _paragraph(label: str, text: str, width: int) -> str:
    return _wrapped(text, width, _LABEL.format(label), _LABEL.format(""))


def _wrapped(text: str, width: int, first: str, indent: str) -> str:
    room = width - len(indent)

    def keep(command: re.Match[str]) -> str:
        whole = command[0]
        return whole.replace(" ", _KEPT) if len(whole) <= room - 2 else whole

    lines = textwrap.wrap(
        re.sub(r"`[^`]*`", keep, text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_KEPT, " ")
