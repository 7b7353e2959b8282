"""What a kernel writes down of a cluster that is kept, so that the next one finds it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from workbench.cluster.controller_process import runtime_folder
from workbench.errors import NoCluster, UsageError
from workbench.safefiles import load_json, read_file, write_private

_FILE = "cluster.json"
_MOST_BYTES = 64 << 20
_PARTS = {"name": str, "address": str, "options": dict, "engines": dict}


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` into the cluster's folder, which only this user can read: it holds keys."""
    write_private(folder / _FILE, json.dumps(state))


def find(name: str | None) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the state of a kept cluster that still runs.

    Parameters
    ----------
    name
        Its name; None where there is only one.

    Raises
    ------
    NoCluster
        There is none, or none of that name.
    UsageError
        There are several, and none was named.
    """
    kept = {state["name"]: (folder, state) for folder, state in _running()}
    if name is not None and name in kept:
        return kept[name]
    there = ", ".join(sorted(kept)) or "none"
    if name is not None or not kept:
        what = f"cluster {name!r}" if name else "a cluster"
        raise NoCluster(
            f"Cannot attach to {what}: of the clusters that outlive their kernel, {there} runs. "
            "Start one with %cluster start --keep 30m."
        )
    if len(kept) > 1:
        raise UsageError(f"Cannot attach: several clusters run. Name one of {there}.")
    return next(iter(kept.values()))


def _running() -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in runtime_folder().glob(f"workbench-*/{_FILE}"):
        try:
            state = load_json(read_file(path, _MOST_BYTES), finite=False)
        except (OSError, ValueError):
            continue
        if not isinstance(state, dict) or not all(
            isinstance(state.get(part), kind) for part, kind in _PARTS.items()
        ):
            continue
        if _answers(path.parent / "controller.sock"):
            found.append((path.parent, state))
        else:  # its processes are gone without a farewell: a reboot, or a SIGKILL
            shutil.rmtree(path.parent, ignore_errors=True)
    return found


def _answers(path: Path) -> bool:
    """Whether a holder listens there; it is not connected to, for it has one client at a time."""
    try:
        return any(str(path) in line for line in Path("/proc/net/unix").read_text().splitlines())
    except OSError:
        return path.exists()
