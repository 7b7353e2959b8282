"""What faults could leave behind, as numbers that must not grow."""

import ctypes
import gc
import os
import statistics
from pathlib import Path

import psutil

MARK = "SOAK_RUN"
"""A variable that every process of a run on this machine has inherited, orphans included."""
MAX_MB = 1.0
"""By how much the memory of the kernel may grow in 100 faults."""
AGENT_FOLDER = "/tmp/workbench-agent-"
_agents = set()
"""Those of all agents of this machine so far, by their logs, which this process has open."""
LEAST = 200
"""Of fewer faults after the warm-up, the growth of memory is not judged."""


def processes(namespaces):
    """Return the processes of this run, here and in the test VMs, as pid and command line."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            ours = mark in (path / "environ").read_bytes().split(b"\0")
            if ours or (namespaces and str((path / "ns/net").readlink()) in namespaces):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(path.name)] = command.decode(errors="replace")
        except OSError:  # it has ended
            continue
    return found


def levels(namespaces, folder):
    """Return the numbers of this process, and of what it has started.

    Parameters
    ----------
    namespaces
        The network namespaces of test VMs, as in ``/proc/PID/ns/net``.
    folder
        The folder for temporary files.
    """
    targets = _open_files()
    _agents.update(Path(one).parent for one in targets if one.startswith(AGENT_FOLDER))
    zombies = [one for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE]
    return {
        "processes": len(processes(namespaces)),
        "zombies": len(zombies),
        "threads of the kernel": len(list(Path("/proc/self/task").iterdir())),
        "descriptors of the kernel": len(targets),
        "sockets of the kernel": sum(target.startswith("socket:") for target in targets),
        "temporary files": sum(1 for _ in folder.rglob("*")),
        "folders of agents": sum(one.exists() for one in _agents),
    }


def _open_files():
    """Return what descriptors refer to, without the files of the current record of timings."""
    runs, found = os.environ["GRADIENT_WORKBENCH_RUNS"], []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the one of this loop
            continue
        if not target.startswith(runs):  # a few of each cluster, when they are first needed
            found.append(target)
    return found


def memory_mb():
    """Return the memory of this process, without what could be given back at any time."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth_mb(samples):
    """Return by how much memory grows in 100 faults: from the first to the last quarter's median.

    Parameters
    ----------
    samples
        The memory after each fault.
    """
    quarter = len(samples) // 4
    if quarter == 0:
        return 0.0
    first, last = statistics.median(samples[:quarter]), statistics.median(samples[-quarter:])
    return (last - first) / (len(samples) - quarter) * 100


def grown(now, allowed):
    """Return which of these numbers are larger than allowed, as text; empty for none."""
    return ", ".join(
        f"{count} {name} instead of {allowed[name]}"
        for name, count in now.items()
        if count > allowed.get(name, count)
    )
