"""ipyparallel's connection files, which appear before they are whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.01


def is_whole(path: Path) -> bool:
    """Whether the controller has finished writing a connection file."""
    try:
        json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def wait_until_whole(
    path: Path, timeout_s: float, check: Callable[[], None] = lambda: None
) -> bool:
    """Wait for a whole file; False where there is none after `timeout_s`.

    Parameters
    ----------
    check
        Called again and again meanwhile; may raise to end the wait.
    """
    deadline = time.monotonic() + timeout_s
    while not is_whole(path):
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
