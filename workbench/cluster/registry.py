"""Keep track of this kernel's current cluster, which the magics and the panel use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.cluster.start_options import start_line
from workbench.errors import ClusterError, NoCluster

if TYPE_CHECKING:
    from workbench.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

_DOWN = frozenset({"stopped", "stopping"})
_starting = threading.Lock()
_current: Cluster | None = None
_start_arguments: dict[str, Any] | None = None
"""The arguments of `start`, if it has started the current cluster."""
_listeners: list[Callable[[], None]] = []
_unsubscribe: Callable[[], None] = lambda: None  # noqa: E731
"""Ends the subscription to the current cluster."""


def current() -> Cluster | None:
    """Return the latest cluster of this kernel, or None.

    Examples
    --------
    >>> current() is None
    True
    """
    return _current


def adopt() -> None:
    """Adopt the only running cluster as the current one, unless the current one is running.

    So the magics can use a cluster that Python code has started.
    """
    from workbench.cluster.cluster import clusters_of_this_process

    if _current is None or _current.state in _DOWN:
        running = [cluster for cluster in clusters_of_this_process() if cluster.state not in _DOWN]
        if len(running) == 1:
            set_current(running[0])
        elif running and _current is None:
            names = ", ".join(sorted(cluster.name for cluster in running))
            raise NoCluster(
                f"No cluster was started with %cluster start, and Python code has started {names}. "
                "Use their methods, such as run, or stop all but one."
            )


def required() -> Cluster:
    """Return the current cluster; raise `NoCluster` if there is none."""
    adopt()
    if _current is None:
        raise NoCluster("No cluster runs in this notebook. Start one with %cluster start.")
    return _current


def start(n: int | None = None, **options: Any) -> Cluster:
    """Start a cluster as the current one, or return the running one if its options are the same.

    The arguments are those of `Cluster`. Raise `ClusterError` if a different cluster runs, such as
    on other VMs or with another number of ranks.
    """
    # if the panel and a cell both start a cluster, the second call returns the first one's
    with _starting:
        return _start(n, options)


def _start(n: int | None, options: dict[str, Any]) -> Cluster:
    global _start_arguments  # noqa: PLW0603 - changes together with the current cluster
    from workbench.cluster.cluster import Cluster

    cluster = Cluster(n, **options)
    running = _current
    if running is not None and running.state not in _DOWN:
        failed = running.state == "failed"
        if failed or running.options.identity != cluster.options.identity:
            size = f" with {running.n}" if running.n else ""
            raise ClusterError(
                f"Cannot start a cluster{f' of {cluster.n} ranks' if cluster.n else ''}: "
                f"{running.name} "
                + (
                    "has failed. Repair it with %cluster restart, or stop it first with "
                    "%cluster stop."
                    if failed
                    else f"runs{size}. Stop it first with %cluster stop."
                )
            )
        if not cluster.options.record and running.recording:
            raise ClusterError(
                f"--no-record: {running.name} runs already, and records its cells. Switch that "
                "off with %timings off."
            )
        return running
    set_current(cluster)
    _start_arguments = {"n": n, **options}
    return cluster.start()


def attach(name: str | None) -> Cluster:
    """Attach to a cluster, and make it the current one; see `Cluster.attach`.

    If `name` is the current cluster, return it, so that the cell can be run again.
    """
    from workbench.cluster.cluster import Cluster

    with _starting:
        if _current is not None and _current.state not in _DOWN:
            if name == _current.name:
                return _current
            if name is None and _current.options.keep_s is not None:
                raise ClusterError(
                    f"Cannot attach to {_current.name}: this notebook is attached already. Run "
                    "cells with %%distributed; %cluster shows its status."
                )
            raise ClusterError(
                f"Cannot attach: {_current.name} runs in this notebook. Stop it with %cluster stop."
            )
        cluster = Cluster.attach(name)
        set_current(cluster)
        return cluster


def stop() -> Cluster:
    """Stop the current cluster, unless it was stopped before, and return it."""
    cluster = required()
    cluster.stop()
    return cluster


def source(cluster: Cluster) -> str:
    """Return a cell that connects to a cluster, now and in the notebook's next kernel.

    In the next kernel, the cell attaches to a kept cluster; otherwise it starts a cluster with the
    same options.
    """
    if cluster.options.keep_s is not None:
        line = f"%cluster attach --name {cluster.name}"
    else:
        has_arguments = _start_arguments is not None and cluster is _current
        line = (start_line(_start_arguments or {}) if has_arguments else None) or "%cluster status"
    return f"%load_ext workbench\ncluster = {line}"


def set_current(cluster: Cluster | None) -> None:
    """Make `cluster` the current one; call the listeners now and after each of its changes."""
    # a kernel has one current cluster
    global _current, _start_arguments, _unsubscribe  # noqa: PLW0603
    _unsubscribe()
    _current = cluster
    _start_arguments = None
    if cluster is not None:
        _unsubscribe = cluster.subscribe(changed)
    changed()
    _log.debug("the current cluster is %s", None if cluster is None else cluster.name)


def subscribe(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener`, from any thread, after every change; return a function that ends this.

    A listener that is subscribed twice, such as by ``%reload_ext``, is called once per change.

    Examples
    --------
    >>> unsubscribe = subscribe(lambda: print("changed"))
    >>> changed()
    changed
    >>> unsubscribe()
    >>> changed()
    """
    if listener not in _listeners:
        _listeners.append(listener)
    return lambda: _listeners.remove(listener) if listener in _listeners else None


def changed() -> None:
    """Call the listeners after a change of the current cluster or its state."""
    for listener in tuple(_listeners):
        listener()
