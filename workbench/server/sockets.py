"""WebSocket handler of the live counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.server.feed import LiveFeed, LiveMessage
from workbench.server.handlers import JsonErrorHandler
from workbench.server.notebooks import Notebooks


class LiveHandler(WebSocketMixin, WebSocketHandler, JsonErrorHandler):
    """``WS live``: sends a message at once, and then one every second."""

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
        with contextlib.suppress(WebSocketClosedError):  # the client disconnected meanwhile
            await self.write_message(message)
