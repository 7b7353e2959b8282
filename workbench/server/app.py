"""Add the routes, and the objects that serve them, to the web application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_server.utils import url_path_join
from tornado.web import Application

from workbench.resources import take_snapshot
from workbench.resources.counters import Sampler
from workbench.server import hardware_metrics, metrics
from workbench.server.feed import LiveFeed, Notebooks
from workbench.server.handlers import (
    ClusterHandler,
    ClustersHandler,
    FindingsHandler,
    LiveHandler,
    ReadHandler,
    SnapshotCache,
    SnapshotHandler,
)
from workbench.server.run_files import RunFileHandler


def attach(
    web_app: Application,
    *,
    snapshots: SnapshotCache | None = None,
    make_sampler: Callable[[], Sampler] = Sampler,
) -> None:
    """Add the routes to the server's web application, and metrics to its ``/metrics``.

    This function opens no device. The first request or client does.
    """
    snapshots = snapshots or SnapshotCache(take_snapshot)
    notebooks = Notebooks(web_app.settings["session_manager"])
    feed = LiveFeed(make_sampler, notebooks=notebooks.paths)
    metrics.register()
    hardware_metrics.register(feed)
    base = url_path_join(web_app.settings["base_url"], "workbench/api")
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "snapshot"), SnapshotHandler, {"snapshots": snapshots}),
            (
                url_path_join(base, "findings"),
                FindingsHandler,
                {"snapshots": snapshots, "feed": feed},
            ),
            (url_path_join(base, "read"), ReadHandler, {"lock": asyncio.Lock()}),
            (url_path_join(base, "clusters"), ClustersHandler),
            (url_path_join(base, r"clusters/([^/]+)"), ClusterHandler),
            (url_path_join(base, r"runs/([^/]+)/files/([^/]+)"), RunFileHandler),
            (url_path_join(base, "live"), LiveHandler, {"feed": feed, "notebooks": notebooks}),
        ],
    )
