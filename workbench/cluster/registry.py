"""The cluster that this kernel's magics and panel mean, and who wants to know of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.errors import ClusterError, NoCluster

if TYPE_CHECKING:
    from workbench.cluster.cluster import Cluster

_DOWN = frozenset({"stopped", "stopping"})
_starting = threading.Lock()
_current: Cluster | None = None
_listeners: list[Callable[[], None]] = []


def current() -> Cluster | None:
    """Return the cluster that was started last in this kernel, or None."""
    return _current


def required() -> Cluster:
    """Return the current cluster.

    Raises
    ------
    NoCluster
        None was started.
    """
    if _current is None:
        raise NoCluster("No cluster runs in this notebook. Start one with %cluster start.")
    return _current


def start(n: int | None = None, **options: Any) -> Cluster:
    """Start a cluster as the current one, or return the running one where it is the same.

    Parameters
    ----------
    n
        Ranks on this machine.
    options
        Further ones of `Cluster`.

    Raises
    ------
    ClusterError
        Another one runs, on other VMs or with another number of ranks.
    """
    with _starting:  # the panel and a cell may ask at once: the second gets the first's
        return _start(n, options)


def _start(n: int | None, options: dict[str, Any]) -> Cluster:
    from workbench.cluster.cluster import Cluster

    cluster = Cluster(n, **options)

    running = _current if _current is not None and _current.state not in _DOWN else None
    if running is not None:
        same = running.options.place == cluster.options.place
        if same and running.state != "failed":
            return running
        failed = running.state == "failed"
        raise ClusterError(
            f"Cannot start a cluster of {cluster.n} ranks: {running.name} "
            + (
                "has failed. Repair it with %cluster restart, or stop it first with %cluster stop."
                if failed
                else f"runs with {running.n}. Stop it first with %cluster stop."
            )
        )
    set_current(cluster)
    return cluster.start()


def attach(name: str | None) -> Cluster:
    """Make a cluster that an earlier kernel has left the current one; see `Cluster.attach`."""
    from workbench.cluster.cluster import Cluster

    with _starting:
        if _current is not None and _current.state not in _DOWN:
            raise ClusterError(
                f"Cannot attach: {_current.name} runs in this notebook. Stop it with %cluster stop."
            )
        cluster = Cluster.attach(name)
        set_current(cluster)
        return cluster


def stop() -> Cluster:
    """Stop the current cluster, unless it is stopped already, and return it."""
    cluster = required()
    cluster.stop()
    return cluster


def set_current(cluster: Cluster | None) -> None:
    """Make `cluster` the one that magics and panel mean."""
    global _current  # noqa: PLW0603 - one kernel has one current cluster
    _current = cluster
    changed()


def subscribe(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener`, from any thread, on every change; return how to stop that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener) if listener in _listeners else None


def changed() -> None:
    """Tell the listeners that the current cluster, or its state, is another."""
    for listener in tuple(_listeners):
        listener()
