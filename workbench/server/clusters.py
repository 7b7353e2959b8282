"""Clusters of this user's kernels on this VM: listed, and kept ones stopped."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from workbench.errors import ClusterError, NoCluster, printable
from workbench.resources.process_registry import (
    CLUSTERS_FOLDER,
    CLUSTERS_VERSION,
    ProcessRegistry,
    jupyter_folder,
)

MAX_CLUSTERS = 100
_MAX_CHARACTERS = 300
_STOP_S = 120.0
_STATES = {"starting", "ready", "running", "stopping", "failed"}


def list_clusters() -> list[dict[str, Any]]:
    """Return the clusters that kernels have, then those that are kept without a kernel.

    This reads files, and connects to the sockets of kept clusters.
    """
    folder = jupyter_folder(jupyter_runtime_dir()) / CLUSTERS_FOLDER
    entries = [_checked(one) for one in ProcessRegistry(folder).read()]
    found = {one["name"]: one for one in entries if one is not None}
    clusters = sorted(found.values(), key=lambda one: str(one["name"]))
    return [*clusters, *_without_kernel(set(found))][:MAX_CLUSTERS]


def _without_kernel(names: set[str]) -> list[dict[str, Any]]:
    # Imported here, because few servers list clusters.
    from workbench.cluster.kept import list_kept

    return [
        {
            "name": one.name,
            "state": "kept" if one.pid is None else "held",
            "message": "",
            "ranks": one.ranks,
            "vms": list(one.vms),
            "keep_s": one.keep_s,
            "kernel_id": None,
            "pid": one.pid,
        }
        for one in sorted(list_kept())
        if one.name not in names
    ]


def _checked(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a kernel's entry that are shown; None if it is not valid."""
    vms, keep_s, kernel_id = (entry.get(name) for name in ("vms", "keep_s", "kernel_id"))
    valid = (
        entry.get("version") == CLUSTERS_VERSION
        and isinstance(entry.get("name"), str)
        and entry.get("state") in _STATES
        and isinstance(entry.get("ranks"), int)
        and isinstance(vms, list)
    )
    if not valid or not isinstance(vms, list):
        return None
    return {
        "name": _text(entry["name"]),
        "state": entry["state"],
        "message": _text(entry.get("message") or ""),
        "ranks": entry["ranks"],
        "vms": [_text(vm) for vm in vms],
        # NaN is not valid JSON
        "keep_s": keep_s if isinstance(keep_s, int | float) and math.isfinite(keep_s) else None,
        "kernel_id": _text(kernel_id) if isinstance(kernel_id, str) else None,
        "pid": None,
    }


def _text(value: Any) -> str:
    return printable(str(value)[:_MAX_CHARACTERS])


async def stop_kept_cluster(name: str) -> None:
    """Stop a cluster that is kept without a kernel, in a process of its own.

    Raises
    ------
    NoCluster
        No cluster of that name is kept.
    ClusterError
        A kernel or another process has it, or it did not stop.
    """
    clusters = await asyncio.to_thread(list_clusters)
    chosen = next((one for one in clusters if one["name"] == name), None)
    shown = _text(name)
    if chosen is None:
        raise NoCluster(f"{shown}: no such cluster runs. Refresh the list.")
    if chosen["state"] == "held":
        raise ClusterError(
            f"{shown}: in use by process {chosen['pid']}. Stop it there, or end that process."
        )
    if chosen["state"] != "kept":
        raise ClusterError(
            f"{shown}: a kernel is attached to it. Run %cluster stop in its notebook."
        )
    # The modules of the folder where the server was started must not be loaded.
    safe = ["-P"] if hasattr(sys.flags, "safe_path") else []
    folder = None if safe else Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *safe, "-m", "workbench.cluster.kept", name),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _STOP_S)
    except asyncio.TimeoutError as error:
        process.kill()
        raise ClusterError(
            f"{shown}: did not stop within {_STOP_S:g} s. Attach to it with %cluster attach."
        ) from error
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines() or ["no reason was reported"]
        raise ClusterError(f"{shown}: could not be stopped: {_text(lines[-1])}")
