"""The table of a run."""

import os
import platform
import statistics
import subprocess
from collections import Counter
from pathlib import Path

from .faults import KINDS
from .levels import LEAST, MAX_MB, growth_mb

FOLDER = Path(__file__).parents[2]


def percentile(values, share):
    """Return the smallest value that so large a share of the values does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, max(0, -(-len(values) * share // 100) - 1))]


def memory(outcomes, warm_up):
    """Return a sentence about the memory of the kernel, and whether it has grown too much."""
    samples = [one.memory_mb for one in outcomes][warm_up:]
    if not samples:
        return "The memory of the kernel was not judged: the run was too short.", False
    growth = growth_mb(samples)
    judged = len(samples) >= LEAST
    text = (
        f"Memory of the kernel: {samples[0]:.1f} MB after {warm_up} faults, {samples[-1]:.1f} MB "
        f"after {len(outcomes)}; {growth:+.2f} MB in 100 faults"
    )
    limit = f"limit: {MAX_MB:g} MB" if judged else f"not judged: fewer than {LEAST} faults"
    return f"{text} ({limit}).", judged and growth > MAX_MB


def header(seed, command, machine_load, date):
    """Return what the run was made with."""
    commit = subprocess.run(
        ["git", "-C", FOLDER, "describe", "--always", "--dirty", "--abbrev=12"],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, Linux {platform.release()}, {cores} cores"
    return [
        "# Faults",
        "",
        "Random faults in one process that is in the place of a notebook's kernel. After each, the",
        "variables of the living ranks must be kept, the next sums right, and nothing left behind",
        "(processes, threads, descriptors, sockets, temporary files). Recovery is from the fault,",
        "or from its end if it lasts, to the next right sum over all ranks, with the restart of",
        "what is lost.",
        "",
        f"- Made by `{command}` (seed {seed}) on {date}",
        f"- Commit {commit or 'unknown'}",
        f"- {machine}, Python {platform.python_version()}",
        f"- Load average {machine_load}: recovery is slower on a machine that does other work",
    ]


def rows(outcomes):
    """Return the table, a row for each kind."""
    lines = [
        "| Fault | Count | Recovery, median | 99th percentile | Lost | Failures |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for kind, words in KINDS.items():
        its = [one for one in outcomes if one.fault.kind == kind]
        if not its:
            continue
        times = [one.recovery_s for one in its if not one.wrong]
        lost = sum(one.lost for one in its)
        median = f"{statistics.median(times):.2f} s" if times else "-"
        most = f"{percentile(times, 99):.2f} s" if times else "-"
        what = f"variables of {lost} ranks" if lost else "nothing"
        failures = sum(bool(one.wrong) for one in its)
        lines.append(f"| {words} | {len(its)} | {median} | {most} | {what} | {failures} |")
    return lines


def text(outcomes, head, left_out, wanted, warm_up):
    """Return the whole report."""
    lines = [*head, ""]
    failed = [one for one in outcomes if one.wrong]
    lines += [f"{len(outcomes)} of {wanted} faults were played, {len(failed)} with a failure.", ""]
    lines.append(memory(outcomes, warm_up)[0])
    for site in Counter(one.site for one in outcomes):
        lines += ["", f"## {site[0].upper()}{site[1:]}", ""]
        lines += rows([one for one in outcomes if one.site == site])
        if left_out.get(site):
            lines += ["", *(f"Left out: {KINDS[kind]} ({why})." for kind, why in left_out[site])]
    if failed:
        lines += ["", "## Failures", ""]
        lines += [f"- {one.site}: {one.fault}: {' '.join(one.wrong.split())}" for one in failed]
    return "\n".join(lines) + "\n"
