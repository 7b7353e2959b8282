"""Which notebook each kernel runs, as the server's session manager knows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

log = logging.getLogger(__name__)

WAIT_S = 0.25
"""For the event loop to answer; a busy one is not waited for, and the last answer stands."""


class Notebooks:
    """Asks the session manager on its event loop, from the sampler's thread.

    Parameters
    ----------
    sessions
        The server's session manager.
    """

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: Future[dict[str, str]] | None = None
        self._paths: dict[str, str] = {}
        self._told = False

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the event loop that the session manager lives on."""
        self._loop = loop

    def paths(self) -> Mapping[str, str]:
        """Give the path of each kernel's notebook, by the kernel's id.

        Waits for `WAIT_S` at most, and asks once however long the answer takes; from one
        thread at a time, and never the loop's own.
        """
        if self._asked is None:
            self._ask()
        if self._asked is not None and wait([self._asked], WAIT_S).done:
            asked, self._asked = self._asked, None
            try:
                self._paths = asked.result()
                self._told = False
            except Exception:  # of another's session manager; what it said before may be wrong
                self._paths = {}
                if not self._told:  # once a second would fill the log
                    log.warning("the notebooks of kernels are not known", exc_info=True)
                self._told = True
        return self._paths

    def _ask(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        listing = self._list()
        try:
            self._asked = asyncio.run_coroutine_threadsafe(listing, self._loop)
        except RuntimeError:  # closed just now: the server is going down
            listing.close()

    async def _list(self) -> dict[str, str]:
        return {
            one["kernel"]["id"]: one["path"]
            for one in await self._sessions.list_sessions()
            if one.get("type") == "notebook"  # a console has a path too, of no file
        }
