"""Find clusters that outlive their kernel by their state files, and stop them without a kernel.

``python -m workbench.cluster.kept NAME`` stops a cluster. The Jupyter server runs this command, so
that the libraries of a cluster are not loaded in the server.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from workbench.cluster.controller import STATE_FILE, runtime_folder
from workbench.cluster.holder import holder
from workbench.errors import ClusterError, NoCluster, UsageError, WorkbenchError, reason
from workbench.safefiles import load_json, read_file
from workbench.wire.detached import connect

_log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_CONNECT_S = 1.0
"""Time limit, because a stopped process with a full queue of connections would block the list."""
_PARTS = {"name": str, "address": str, "options": dict, "agents": dict, "engines": dict}


class KeptCluster(NamedTuple):
    """A description of a kept cluster for others, who cannot attach with it.

    `pid` is the process that holds the cluster, such as a kernel or a script, or None.

    Examples
    --------
    >>> KeptCluster("local-1a2b", 2, ("vm1",), 1800.0, None).vms
    ('vm1',)
    """

    name: str
    ranks: int
    vms: tuple[str, ...]
    keep_s: float | None
    pid: int | None


def list_kept() -> list[KeptCluster]:
    """Return the kept clusters of this user on this machine whose processes run."""
    return [_describe(folder, saved) for folder, saved in running()[0]]


def _describe(folder: Path, saved: dict[str, Any]) -> KeptCluster:
    members = saved["engines"].get("members")
    infos = [member.get("info") for member in members] if isinstance(members, list) else []
    vms = [str(info["vm"]) for info in infos if isinstance(info, dict) and "vm" in info]
    keep_s = saved["options"].get("keep_s")
    seconds = float(keep_s) if isinstance(keep_s, int | float) else None
    names = tuple(dict.fromkeys(vms))
    return KeptCluster(saved["name"], len(infos), names, seconds, holder(folder))


def stop_kept(name: str) -> None:
    """Stop every process of a kept cluster, also while a cell runs.

    Raises
    ------
    NoCluster
        No kept cluster has that name.
    ClusterError
        A process holds the cluster.
    StartFailed
        The cluster's processes do not answer.
    """
    from workbench.cluster.options import Options
    from workbench.cluster.state import ClusterState

    folder, saved = find(name)
    if (pid := holder(folder)) is not None:
        raise ClusterError(f"{name}: in use by process {pid}. Stop it there, or end that process.")
    _log.info("stopping the kept cluster %s", name)
    state = ClusterState(saved["name"], Options.from_plain(saved["options"]))
    processes = state.new_processes(folder)
    try:
        processes.attach(saved)
    finally:
        processes.stop()


def find(name: str | None) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the state of the kept cluster of this name, or of the only one.

    Raises
    ------
    NoCluster
        There is no kept cluster, or none has that name.
    UsageError
        There are several, and no name was given.
    """
    clusters, damaged = running()
    kept = {state["name"]: (folder, state) for folder, state in clusters}
    if name is not None and name in kept:
        return kept[name]
    names = ", ".join(sorted(kept)) or "none"
    if name is not None or not kept:
        target = f"cluster {name!r}" if name else "a cluster"
        if damaged:
            raise NoCluster(
                f"Cannot attach to {target}: {damaged[0]} is damaged, and its cluster still runs. "
                "It ends when its time to be kept is over. Start another with %cluster start."
            )
        raise NoCluster(
            f"Cannot attach to {target}: of the clusters that outlive their kernel, {names} runs. "
            "Start one with %cluster start --keep 30m."
        )
    if len(kept) > 1:
        raise UsageError(f"Cannot attach: several clusters run. Name one of {names}.")
    return next(iter(kept.values()))


def running() -> tuple[list[tuple[Path, dict[str, Any]]], list[Path]]:
    """Return the folders and states of all running kept clusters, and the damaged state files."""
    clusters: list[tuple[Path, dict[str, Any]]] = []
    damaged: list[Path] = []
    for path in runtime_folder().glob(f"workbench-*/{STATE_FILE}"):
        try:
            state = load_json(read_file(path, _MAX_BYTES), finite=False)
        except (OSError, ValueError):
            state = None
        complete = isinstance(state, dict) and all(
            isinstance(state.get(name), kind) for name, kind in _PARTS.items()
        )
        runs = _answers(path.parent / "controller.sock")
        if complete and runs:
            clusters.append((path.parent, state))
        elif complete:  # a reboot or SIGKILL has ended its processes
            _log.info("removing %s, the folder of a kept cluster that has ended", path.parent)
            shutil.rmtree(path.parent, ignore_errors=True)
        elif runs:
            damaged.append(path)
    return clusters, damaged


def _answers(path: Path) -> bool:
    """Return whether the controller listens on this socket; connecting disturbs no kernel."""
    try:
        connect(path, _CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # the state is unknown, so that its folder must not be removed
        return path.exists()
    return True


def main() -> int:
    """Stop the cluster that is named on the command line; return the exit status."""
    try:
        stop_kept(sys.argv[1])
    except WorkbenchError as error:
        sys.stderr.write(f"{reason(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
