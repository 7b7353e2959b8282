"""Find the notebook of each kernel through the server's session manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

log = logging.getLogger(__name__)

WAIT_S = 0.25
"""Time limit for the event loop to answer; after it the last answer is used."""


class Notebooks:
    """Queries the session manager on its event loop, from the sampler's thread.

    Parameters
    ----------
    sessions
        The server's session manager.
    """

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._loop: asyncio.AbstractEventLoop | None = None
        self._query: Future[dict[str, str]] | None = None
        self._paths: dict[str, str] = {}
        self._warned = False

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the session manager."""
        self._loop = loop

    def paths(self) -> Mapping[str, str]:
        """Return the path of each kernel's notebook, by the kernel's id.

        This waits for at most `WAIT_S`, and starts no second query before the first is
        answered. Call it from one thread at a time, and not from the event loop's thread.
        """
        if self._query is None:
            self._ask()
        if self._query is not None and wait([self._query], WAIT_S).done:
            query, self._query = self._query, None
            try:
                self._paths = query.result()
                self._warned = False
            except Exception:  # any, as the session manager may be another implementation
                self._paths = {}
                if not self._warned:  # once, as a warning every second would fill the log
                    log.warning("cannot list the notebooks of kernels", exc_info=True)
                self._warned = True
        return self._paths

    def _ask(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        listing = self._list()
        try:
            self._query = asyncio.run_coroutine_threadsafe(listing, self._loop)
        except RuntimeError:  # closed meanwhile: the server is shutting down
            listing.close()

    async def _list(self) -> dict[str, str]:
        return {
            one["kernel"]["id"]: one["path"]
            for one in await self._sessions.list_sessions()
            if one.get("type") == "notebook"  # a console has a path too, but no file
        }
