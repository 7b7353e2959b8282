"""Wait for ipyparallel's connection files. They exist before they are complete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.01


def _is_complete(path: Path) -> bool:
    """Return whether the controller has finished writing a connection file."""
    try:
        json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def wait_until_complete(
    path: Path, timeout_s: float, check: Callable[[], None] = lambda: None
) -> bool:
    """Wait until a connection file is complete. Return whether it was within `timeout_s` seconds.

    Parameters
    ----------
    check
        Called repeatedly; may raise an exception to end the wait.

    Examples
    --------
    >>> wait_until_complete(Path("/nonexistent/engine.json"), timeout_s=0)
    False
    """
    deadline = time.monotonic() + timeout_s
    while not _is_complete(path):
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
