"""REST handlers: the snapshot, the doctor's findings, and reading a file of the client."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from workbench.doctor import diagnose
from workbench.errors import SnapshotError
from workbench.resources import Snapshot
from workbench.resources.codec import encode
from workbench.resources.summary import show_bytes
from workbench.resources.usage import Sample
from workbench.server.feed import LiveFeed, LiveMessage
from workbench.server.reading import MOST_BYTES, read
from workbench.server.snapshots import SnapshotCache

AUTH_RESOURCE = "workbench"


class JsonErrorHandler(JupyterHandler):
    """Base class that sends errors as JSON: ``{"message": ..., "reason": ...}``."""

    auth_resource = AUTH_RESOURCE

    def refuse(self, status: int, why: str) -> None:
        """Answer with an error."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": why, "reason": why}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with an error for an exception."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        why = error.log_message if isinstance(error, web.HTTPError) else None
        if status_code == HTTPStatus.FORBIDDEN and not self.current_user:
            why = "not logged in: the server's token or cookie is missing or wrong"
        if status_code == HTTPStatus.NOT_FOUND:  # Jupyter's answer for these routes
            why = why or "not allowed for pages of another origin"
        self.refuse(status_code, why or HTTPStatus(status_code).phrase)


class _Handler(JsonErrorHandler, APIHandler):
    """Base class of the routes; a panel that polls does not keep an idle server running."""

    _track_activity = False


class SnapshotHandler(_Handler):
    """``GET snapshot``."""

    def initialize(self, snapshots: SnapshotCache) -> None:
        """Store the arguments from `attach`."""
        self.snapshots = snapshots

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the snapshot of this VM."""
        snapshot = await self.snapshots.get()
        self.finish(await asyncio.to_thread(lambda: json.dumps(snapshot.to_plain())))


class FindingsHandler(_Handler):
    """``GET findings``."""

    def initialize(self, snapshots: SnapshotCache, feed: LiveFeed) -> None:
        """Store the arguments from `attach`."""
        self.snapshots = snapshots
        self.feed = feed

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the doctor's findings about this VM, the worst first.

        While the live feed has a listener, its latest sample is checked too.
        """
        snapshot = await self.snapshots.get()
        self.finish(await asyncio.to_thread(_findings, snapshot, self.feed.latest))


def _findings(snapshot: Snapshot, latest: LiveMessage | None) -> str:
    sample = None if latest is None else Sample.from_plain(latest.plain)
    return json.dumps({"findings": encode(diagnose(snapshot, sample))})


@web.stream_request_body
class ReadHandler(_Handler):
    """``POST read``: accepts up to `MOST_BYTES`, and nothing without authentication."""

    def initialize(self, lock: asyncio.Lock) -> None:
        """Store the arguments from `attach`; the lock allows one file at a time."""
        self.lock = lock
        self.body = bytearray()
        self.too_large = False

    def data_received(self, chunk: bytes) -> None:
        """Store a part of the body; a body that is too large is discarded."""
        self.too_large = self.too_large or len(self.body) + len(chunk) > MOST_BYTES
        if self.too_large or not self.current_user:
            self.body.clear()
        else:
            self.body += chunk

    @web.authenticated
    @authorized("read")
    async def post(self) -> None:
        """Answer with the snapshot that the file holds, and what the doctor finds in it."""
        name = self.get_query_argument("name", "")
        if self.too_large:
            limit = f"at most {show_bytes(MOST_BYTES)} are read"
            self.refuse(413, f"{name or 'the file'} is too large: {limit}")
            return
        try:
            async with self.lock:
                answer = await asyncio.to_thread(read, name, bytes(self.body))
        except SnapshotError as error:
            self.refuse(400, str(error))
            return
        self.finish(answer)
