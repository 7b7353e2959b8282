"""Clusters that outlive their kernel: found by their state files, and stopped without a kernel.

``python -m workbench.cluster.kept NAME`` stops one. The Jupyter server runs it, so that the
libraries of a cluster are not loaded in the server.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from workbench.cluster.controller import STATE_FILE, runtime_folder
from workbench.cluster.holder import holder
from workbench.errors import ClusterError, NoCluster, UsageError, WorkbenchError, reason
from workbench.safefiles import load_json, read_file
from workbench.wire.detached import connect

_MAX_BYTES = 64 << 20
_CONNECT_S = 1.0
"""A process whose queue of connections is full may be stopped: it must not hold up the list."""
_PARTS = {"name": str, "address": str, "options": dict, "agents": dict, "engines": dict}


class KeptCluster(NamedTuple):
    """What others may know of a kept cluster: nothing with which they could attach.

    `pid` is the process that has it, such as a kernel or a script; None if there is none.
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
    infos = [one.get("info") for one in members] if isinstance(members, list) else []
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
        There is none of that name.
    ClusterError
        A process has it.
    StartFailed
        Its processes do not answer.
    """
    from workbench.cluster.options import Options
    from workbench.cluster.state import ClusterState

    folder, saved = find(name)
    if (pid := holder(folder)) is not None:
        raise ClusterError(f"{name}: in use by process {pid}. Stop it there, or end that process.")
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
        There is none, or none of that name.
    UsageError
        There are several, and none was named.
    """
    found, damaged = running()
    kept = {state["name"]: (folder, state) for folder, state in found}
    if name is not None and name in kept:
        return kept[name]
    there = ", ".join(sorted(kept)) or "none"
    if name is not None or not kept:
        what = f"cluster {name!r}" if name else "a cluster"
        if damaged:
            raise NoCluster(
                f"Cannot attach to {what}: {damaged[0]} is damaged, and its cluster still runs. "
                "It ends when its time to be kept is over. Start another with %cluster start."
            )
        raise NoCluster(
            f"Cannot attach to {what}: of the clusters that outlive their kernel, {there} runs. "
            "Start one with %cluster start --keep 30m."
        )
    if len(kept) > 1:
        raise UsageError(f"Cannot attach: several clusters run. Name one of {there}.")
    return next(iter(kept.values()))


def running() -> tuple[list[tuple[Path, dict[str, Any]]], list[Path]]:
    """Return the folders and states of all kept clusters, and the state files that are damaged."""
    found: list[tuple[Path, dict[str, Any]]] = []
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
            found.append((path.parent, state))
        elif complete:  # its processes were ended by a reboot or by SIGKILL
            shutil.rmtree(path.parent, ignore_errors=True)
        elif runs:
            damaged.append(path)
    return found, damaged


def _answers(path: Path) -> bool:
    """Return whether the controller listens there; a connection does not take it from a kernel."""
    try:
        connect(path, _CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # what it is cannot be known: its folder must not be removed
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
