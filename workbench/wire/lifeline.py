"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

_PERIOD_S = 0.25


def die_with_parent(parent: int, before: Callable[[], None] = lambda: None) -> None:
    """End this process and its children soon after `parent` is gone, however it went.

    A pipe from the parent would be held open by anything the parent has
    forked; PR_SET_PDEATHSIG follows the parent's thread, not its process. So
    a thread looks whether the parent still is the parent.

    Parameters
    ----------
    parent
        Process id of the parent; the caller must be the leader of its own
        process group, all of which is killed.
    before
        Called before the end, to clean up.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PERIOD_S)
        try:
            before()
        finally:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="workbench-lifeline", daemon=True).start()
