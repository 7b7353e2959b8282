"""List the clusters of this user's kernels on this VM, and stop kept ones."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
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

_log = logging.getLogger(__name__)

MAX_CLUSTERS = 100
_MAX_CHARACTERS = 300
_STOP_S = 120.0
_STATES = {"starting", "ready", "running", "stopping", "failed"}


def list_clusters() -> list[dict[str, Any]]:
    """Return the clusters of running kernels, then the clusters that are kept without a kernel.

    This function reads files, and connects to the sockets of kept clusters.
    """
    folder = jupyter_folder(jupyter_runtime_dir()) / CLUSTERS_FOLDER
    entries = [_checked(entry) for entry in ProcessRegistry(folder).read()]
    by_name = {cluster["name"]: cluster for cluster in entries if cluster is not None}
    clusters = sorted(by_name.values(), key=lambda cluster: str(cluster["name"]))
    return [*clusters, *_without_kernel(set(by_name))][:MAX_CLUSTERS]


def _without_kernel(names: set[str]) -> list[dict[str, Any]]:
    """Return the kept clusters, except those that are in `names` already."""
    # Imported here, because few servers list clusters.
    from workbench.cluster.kept import list_kept

    return [
        {
            "name": cluster.name,
            "state": "kept" if cluster.pid is None else "held",
            "message": "",
            "ranks": cluster.ranks,
            "vms": list(cluster.vms),
            "keep_s": cluster.keep_s,
            "kernel_id": None,
            "pid": cluster.pid,
        }
        for cluster in sorted(list_kept())
        if cluster.name not in names
    ]


def _checked(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a kernel's entry that the client shows; None for an invalid entry."""
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
        # NaN is not valid in JSON.
        "keep_s": keep_s if isinstance(keep_s, int | float) and math.isfinite(keep_s) else None,
        "kernel_id": _text(kernel_id) if isinstance(kernel_id, str) else None,
        "pid": None,
    }


def _text(value: Any) -> str:
    return printable(str(value)[:_MAX_CHARACTERS])


async def stop_kept_cluster(name: str) -> None:
    """Stop a cluster that is kept without a kernel, in a separate process.

    Raises
    ------
    NoCluster
        No cluster of that name is kept.
    ClusterError
        A kernel or another process is attached to the cluster, or it did not stop.
    """
    clusters = await asyncio.to_thread(list_clusters)
    cluster = next((listed for listed in clusters if listed["name"] == name), None)
    shown = _text(name)
    if cluster is None:
        raise NoCluster(f"{shown}: no such cluster runs. Refresh the list.")
    if cluster["state"] == "held":
        raise ClusterError(
            f"{shown}: in use by process {cluster['pid']}. Stop it there, or end that process."
        )
    if cluster["state"] != "kept":
        raise ClusterError(
            f"{shown}: a kernel is attached to it. Run %cluster stop in its notebook."
        )
    await _run_stop(name, shown)


async def _run_stop(name: str, shown: str) -> None:
    """Stop a kept cluster in a separate process; error messages contain the name `shown`."""
    # Python must not import modules from the folder where the server was started.
    safe = ["-P"] if hasattr(sys.flags, "safe_path") else []
    folder = None if safe else Path(__file__).parents[2]
    started_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *safe, "-m", "workbench.cluster.kept", name),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, error_output = await asyncio.wait_for(process.communicate(), _STOP_S)
    except asyncio.TimeoutError as error:
        process.kill()
        _log.info("killed the process that was to stop %s, after %g s", shown, _STOP_S)
        raise ClusterError(
            f"{shown}: did not stop within {_STOP_S:g} s. Attach to it with %cluster attach."
        ) from error
    if process.returncode:
        text = error_output.decode("utf-8", "replace").strip()
        lines = text.splitlines() or ["no reason was reported"]
        raise ClusterError(f"{shown}: could not be stopped: {_text(lines[-1])}")
    _log.info("stopped the kept cluster %s in %.1f s", shown, time.monotonic() - started_s)
