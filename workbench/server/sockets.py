"""WebSocket: live counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.server.feed import LiveFeed
from workbench.server.handlers import AUTH_RESOURCE


class LiveHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``WS live``: a message at once, and then one every second."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, feed: LiveFeed) -> None:
        """Take what `attach` gave."""
        self.feed = feed
        self._unsubscribe: Callable[[], None] | None = None
        self._writing: asyncio.Task[None] | None = None

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Upgrade to a WebSocket."""
        await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to the feed."""
        super().open(*args, **kwargs)
        loop = asyncio.get_running_loop()
        self._unsubscribe = self.feed.subscribe(
            lambda message: loop.call_soon_threadsafe(self._send, message)
        )

    def on_message(self, message: str | bytes) -> None:
        """Ignore what the client says: the socket only tells."""

    def on_close(self) -> None:
        """Unsubscribe."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        super().on_close()

    def _send(self, message: str) -> None:
        # A client that reads slower than once a second misses samples; they never queue up.
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(message))

    async def _write(self, message: str) -> None:
        with contextlib.suppress(WebSocketClosedError):  # it left meanwhile
            await self.write_message(message)
