"""Wiring: the routes and what serves them."""

from __future__ import annotations

import asyncio

from jupyter_server.utils import url_path_join
from tornado.web import Application

from workbench.resources import take_snapshot
from workbench.resources.counters import Sampler
from workbench.server.feed import LiveFeed
from workbench.server.handlers import FindingsHandler, ReadHandler, SnapshotHandler
from workbench.server.metrics import register
from workbench.server.snapshots import SnapshotCache
from workbench.server.sockets import LiveHandler


def attach(
    web_app: Application,
    *,
    snapshots: SnapshotCache | None = None,
    feed: LiveFeed | None = None,
) -> None:
    """Add the routes to the server's web application, and metrics to its ``/metrics``.

    Opens no hardware: the first request and the first client do.

    Parameters
    ----------
    web_app
        The server's.
    snapshots, feed
        What serves the routes; of this VM by default.
    """
    snapshots = snapshots or SnapshotCache(take_snapshot)
    feed = feed or LiveFeed(Sampler)
    register()
    base = url_path_join(web_app.settings["base_url"], "workbench/api")
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "snapshot"), SnapshotHandler, {"snapshots": snapshots}),
            (url_path_join(base, "findings"), FindingsHandler, {"snapshots": snapshots}),
            (url_path_join(base, "read"), ReadHandler, {"turn": asyncio.Lock()}),
            (url_path_join(base, "live"), LiveHandler, {"feed": feed}),
        ],
    )
