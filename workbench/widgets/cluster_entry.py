"""Publish the kernel's cluster to the user's other notebooks, through the server."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_core.paths import jupyter_runtime_dir

from workbench.resources.process_registry import (
    CLUSTERS_FOLDER,
    CLUSTERS_VERSION,
    ProcessRegistry,
    jupyter_folder,
)

if TYPE_CHECKING:
    from workbench.cluster import Cluster

_log = logging.getLogger(__name__)

_NAME = "cluster"
_CONNECTION_FILE = re.compile(r"kernel-([\w-]+)\.json$")


class ClusterEntry:
    """The entry of one kernel's cluster in the server's list of clusters.

    The entry is removed when the cluster stops or the kernel ends.

    Parameters
    ----------
    connection_file
        The path of the kernel's connection file. Its name contains the kernel's id.
    """

    def __init__(self, connection_file: str) -> None:
        match = _CONNECTION_FILE.search(Path(connection_file).name)
        self._kernel_id = match[1] if match else None
        self._registry = ProcessRegistry(jupyter_folder(jupyter_runtime_dir()) / CLUSTERS_FOLDER)
        self._published: dict[str, Any] | None = None

    def update(self, cluster: Cluster | None) -> None:
        """Publish the state of the cluster if it has changed."""
        content = None if cluster is None else self._describe(cluster)
        if content == self._published:
            return
        try:
            if content is None:
                self._registry.unregister(_NAME)
            else:
                self._registry.register(_NAME, content)
            self._published = content
            _log.debug("published the cluster's state: %s", content and content["state"])
        except OSError as error:
            _log.warning("other notebooks do not see this kernel's cluster: %s", error)

    def _describe(self, cluster: Cluster) -> dict[str, Any] | None:
        state = cluster.state
        ranks = cluster.ranks
        if state == "stopped":
            return None
        return {
            "version": CLUSTERS_VERSION,
            "name": cluster.name,
            "state": state,
            "message": cluster.message,
            "ranks": len(ranks) or cluster.n,
            "vms": list(dict.fromkeys(str(info.vm) for info in ranks)),
            "keep_s": cluster.options.keep_s,
            "kernel_id": self._kernel_id,
        }
