"""Replaces IPython's pager, which a rank does not have."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from workbench.rank.traceback_frames import CELL_FILE

_CELL_PATH = re.compile(rf"\S*{re.escape(CELL_FILE)}\S*")


def _print_page(shell: object, text: Any, *_: object, **__: object) -> None:  # noqa: ARG001
    """Print what IPython's pager would show, such as the result of ``name?``.

    The kernel merges the output of ranks: what is equal appears once, and differences with their
    ranks.
    """
    page = text.get("text/plain", "") if isinstance(text, dict) else str(text)
    page = _CELL_PATH.sub("a cell", page)  # its name differs between ranks
    sys.stdout.write(f"{page.rstrip()}\n")


@contextmanager
def pages_printed(shell: Any) -> Iterator[None]:
    """Print the pages of the shell in the body."""
    pager = shell.hooks.show_in_pager
    shell.hooks.show_in_pager = MethodType(_print_page, shell)
    try:
        yield
    finally:
        shell.hooks.show_in_pager = pager
