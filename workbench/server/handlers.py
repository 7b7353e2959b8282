"""Handlers of the routes: snapshot, findings, reading a file, clusters, and the live WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.doctor import diagnose
from workbench.errors import ClusterError, NoCluster, SnapshotError, printable
from workbench.resources import Snapshot
from workbench.resources.codec import encode
from workbench.resources.snapshot import MAX_BYTES, parse
from workbench.resources.summary import show_bytes
from workbench.resources.usage import Sample
from workbench.server.clusters import list_clusters, stop_kept_cluster
from workbench.server.feed import LiveFeed, LiveMessage, Notebooks

_log = logging.getLogger(__name__)

_MAX_NAME_CHARACTERS = 200
"""Maximum length of a file name; a longer name is cut."""
_MAX_MESSAGE_CHARACTERS = 600
AUTH_RESOURCE = "workbench"


class SnapshotCache:
    """Cache of the last snapshot. A thread takes a new snapshot if the last one is too old."""

    def __init__(self, take: Callable[[], Snapshot], max_age_s: float = 5.0) -> None:
        self._take = take
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._taken_s = 0.0

    async def get(self) -> Snapshot:
        """Return a recent snapshot; concurrent requests share the same snapshot."""
        async with self._lock:
            age_s = time.monotonic() - self._taken_s
            if self._snapshot is None or age_s > self._max_age_s:
                started_s = time.monotonic()
                self._snapshot = await asyncio.to_thread(self._take)
                self._taken_s = time.monotonic()
                _log.debug("took a snapshot in %.2f s", self._taken_s - started_s)
            return self._snapshot


def read_sent_file(name: str, data: bytes) -> str:
    """Read a file of the client and run the doctor on it; this may block for some seconds.

    `name` appears in messages only: no file of this VM is opened.

    Returns
    -------
    str
        JSON text with the name, the snapshot and the findings.

    Raises
    ------
    SnapshotError
        The file is neither a snapshot nor a topology file.

    Examples
    --------
    >>> try:
    ...     read_sent_file("notes.txt", b"my notes")
    ... except SnapshotError as error:
    ...     print(error)
    notes.txt is neither a snapshot (JSON from `workbench resources --json`) nor a topology file
    of NCCL (XML, as in NCCL_TOPO_FILE). Choose one of these.
    """
    name = printable(name[:_MAX_NAME_CHARACTERS])
    try:
        snapshot = parse(data, name or "the file")
    except SnapshotError as error:
        raise SnapshotError(_cut(str(error))) from error
    answer = {
        "name": name,
        "snapshot": snapshot.to_plain(),
        "findings": encode(diagnose(snapshot)),
    }
    return json.dumps(answer, allow_nan=False)


def _cut(text: str) -> str:
    if len(text) <= _MAX_MESSAGE_CHARACTERS:
        return text
    return f"{text[: _MAX_MESSAGE_CHARACTERS - 3]}..."


class JsonErrorHandler(JupyterHandler):
    """Base class that sends errors as JSON: ``{"message": ..., "reason": ...}``."""

    auth_resource = AUTH_RESOURCE

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": reason, "reason": reason}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with an error for an exception."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        reason = error.log_message if isinstance(error, web.HTTPError) else None
        if status_code == HTTPStatus.FORBIDDEN and not self.current_user:
            reason = "not logged in: the server's token or cookie is missing or wrong"
        if status_code == HTTPStatus.NOT_FOUND:  # Jupyter's answer for these routes
            reason = reason or "not allowed for pages of another origin"
        self.refuse(status_code, reason or HTTPStatus(status_code).phrase)


class RestHandler(JsonErrorHandler, APIHandler):
    """Base class of the REST handlers.

    Requests do not count as activity of a user, so that an idle server shuts down even if a
    panel polls it.
    """

    _track_activity = False


class SnapshotHandler(RestHandler):
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


class FindingsHandler(RestHandler):
    """``GET findings``."""

    def initialize(self, snapshots: SnapshotCache, feed: LiveFeed) -> None:
        """Store the arguments from `attach`."""
        self.snapshots = snapshots
        self.feed = feed

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the doctor's findings on this VM, the most severe first.

        While the live feed has a listener, its latest sample is checked too.
        """
        snapshot = await self.snapshots.get()
        self.finish(await asyncio.to_thread(_findings, snapshot, self.feed.latest))


def _findings(snapshot: Snapshot, latest: LiveMessage | None) -> str:
    sample = None if latest is None else Sample.from_plain(latest.plain)
    return json.dumps({"findings": encode(diagnose(snapshot, sample))})


@web.stream_request_body
class ReadHandler(RestHandler):
    """``POST read``: accepts up to `MAX_BYTES`, and nothing without authentication."""

    def initialize(self, lock: asyncio.Lock) -> None:
        """Store the arguments from `attach`; the lock allows one file at a time."""
        self.lock = lock
        self.body = bytearray()
        self.too_large = False

    def data_received(self, chunk: bytes) -> None:
        """Append a chunk of the body; a body that is too large is discarded."""
        self.too_large = self.too_large or len(self.body) + len(chunk) > MAX_BYTES
        if self.too_large or not self.current_user:
            self.body.clear()
        else:
            self.body += chunk

    @web.authenticated
    @authorized("read")
    async def post(self) -> None:
        """Answer with the snapshot in the file and the doctor's findings on it."""
        name = self.get_query_argument("name", "")
        if self.too_large:
            limit = f"at most {show_bytes(MAX_BYTES)} are read"
            self.refuse(413, f"{name or 'the file'} is too large: {limit}")
            return
        try:
            async with self.lock:
                answer = await asyncio.to_thread(read_sent_file, name, bytes(self.body))
        except SnapshotError as error:
            self.refuse(400, str(error))
            return
        self.finish(answer)


class ClustersHandler(RestHandler):
    """``GET clusters``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the clusters of this user's kernels on this VM, and the kept ones."""
        self.finish(json.dumps({"clusters": await asyncio.to_thread(list_clusters)}))


class ClusterHandler(RestHandler):
    """``DELETE clusters/NAME``: stops a cluster that is kept without a kernel."""

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """Answer without content when every process of the cluster has ended."""
        try:
            await stop_kept_cluster(name)
        except NoCluster as error:
            self.refuse(404, str(error))
        except ClusterError as error:
            self.refuse(409, str(error))
        else:
            self.set_status(204)
            self.finish()


class LiveHandler(WebSocketMixin, WebSocketHandler, JsonErrorHandler):
    """``WS live``: sends the latest sample immediately, and then a sample every second."""

    def initialize(self, feed: LiveFeed, notebooks: Notebooks) -> None:
        """Store the arguments from `attach`."""
        self.feed = feed
        self.notebooks = notebooks
        self._may_see_notebooks = False
        self._unsubscribe: Callable[[], None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Upgrade to a WebSocket."""
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            self.refuse(400, "this route is a WebSocket. Request an upgrade")
        elif self.get_origin() is not None and not self.check_origin():
            self.refuse(403, "a page of another origin may not open this WebSocket")
        else:
            # A user who may not list sessions does not get the paths of notebooks.
            self._may_see_notebooks = await ensure_async(
                self.authorizer.is_authorized(self, self.current_user, "read", "sessions")
            )
            await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to the feed."""
        super().open(*args, **kwargs)
        loop = asyncio.get_running_loop()
        self.notebooks.use(loop)

        def send(message: LiveMessage) -> None:
            text = message.text(notebooks=self._may_see_notebooks)
            loop.call_soon_threadsafe(self._send, text)

        self._unsubscribe = self.feed.subscribe(send)

    def on_message(self, message: str | bytes) -> None:
        """Ignore messages of the client: this socket only sends."""

    def on_close(self) -> None:
        """Unsubscribe."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        super().on_close()

    def _send(self, message: str) -> None:
        # A slow client skips samples, so that they do not queue up.
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(message))

    async def _write(self, message: str) -> None:
        with contextlib.suppress(WebSocketClosedError):  # the client may just have disconnected
            await self.write_message(message)
