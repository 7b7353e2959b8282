"""Actions of the panel and of the form of ``%cluster`` on the current cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.cluster.start_options import arguments
from workbench.errors import UsageError, WorkbenchError

if TYPE_CHECKING:
    from workbench.cluster import Cluster

_log = logging.getLogger(__name__)


def start(options: object) -> None:
    """Start a cluster; `options` maps names of `START_OPTIONS` to their values."""
    if not isinstance(options, Mapping):
        raise UsageError(f"options={options!r}: not options of a start. Give them by name.")
    registry.start(**arguments(options))


def restart() -> None:
    """Replace the lost ranks."""
    _idle_cluster("restart ranks").restart()


def resize(ranks: Any) -> None:
    """Change the number of ranks."""
    _idle_cluster("resize").resize(ranks)


def calibrate() -> None:
    """Measure the fabric; the cluster's message shows the progress."""
    _idle_cluster("calibrate").calibrate(show_progress=False)


def stop() -> None:
    """Stop the cluster, and end a running cell."""
    registry.stop()


def _idle_cluster(action: str) -> Cluster:
    """Return the current cluster; raise `UsageError` if a cell runs on it.

    Without this check, the action would wait for the end of the cell, and so happen at a time
    when the user no longer expects it.
    """
    cluster = registry.required()
    if cluster.state == "running":
        raise UsageError(
            f"Cannot {action}: a cell runs on {cluster.name}. Wait for its end, or interrupt it."
        )
    return cluster


def run_in_thread(
    action: Callable[[], object], on_failure: Callable[[str], None], on_end: Callable[[], None]
) -> None:
    """Run an action in a thread, because the shell must stay free for the next request.

    Parameters
    ----------
    action
        The function to call.
    on_failure
        Called in the thread with the reason if the action fails.
    on_end
        Called in the thread after the action, whether it fails or not.
    """

    def run() -> None:
        started_at = time.monotonic()
        try:
            action()
        except WorkbenchError as error:
            on_failure(str(error))
        except Exception as error:  # noqa: BLE001 - the user who clicked must see any failure
            on_failure(f"{type(error).__name__}: {error}")
        finally:
            _log.debug("action of the panel or form ended in %.1f s", time.monotonic() - started_at)
            on_end()

    threading.Thread(target=run, name="workbench-action", daemon=True).start()
