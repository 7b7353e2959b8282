"""What the panel and the form of ``%cluster`` do with the current cluster, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.cluster.start_options import arguments
from workbench.errors import UsageError, WorkbenchError

if TYPE_CHECKING:
    from workbench.cluster import Cluster


def start(options: object) -> None:
    """Start a cluster with options of `START_OPTIONS`, by name."""
    if not isinstance(options, Mapping):
        raise UsageError(f"options={options!r}: not options of a start. Give them by name.")
    registry.start(**arguments(options))


def restart() -> None:
    """Replace the lost ranks."""
    _idle("restart ranks").restart()


def resize(ranks: Any) -> None:
    """Change the number of ranks."""
    _idle("resize").resize(ranks)


def calibrate() -> None:
    """Measure the fabric; the cluster's message has the progress."""
    _idle("calibrate").calibrate(show_progress=False)


def stop() -> None:
    """Stop the cluster; a cell that runs is ended."""
    registry.stop()


def _idle(action: str) -> Cluster:
    """Return the current cluster; raise `UsageError` if a cell runs on it.

    Otherwise a click would act at an unexpected time, when the cell has ended.
    """
    cluster = registry.required()
    if cluster.state == "running":
        raise UsageError(
            f"Cannot {action}: a cell runs on {cluster.name}. Wait for its end, or interrupt it."
        )
    return cluster


def begin(
    action: Callable[[], object], failed: Callable[[str], None], ended: Callable[[], None]
) -> None:
    """Run an action in a thread, because the shell must stay free for the next request.

    Parameters
    ----------
    failed
        Called, in the thread, with the reason if the action fails.
    ended
        Called, in the thread, at the end in any case.
    """

    def attempt() -> None:
        try:
            action()
        except WorkbenchError as error:
            failed(str(error))
        except Exception as error:  # noqa: BLE001 - the user who clicked must see any failure
            failed(f"{type(error).__name__}: {error}")
        finally:
            ended()

    threading.Thread(target=attempt, name="workbench-action", daemon=True).start()
