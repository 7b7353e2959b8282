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
    """Print a page that IPython's pager would show, such as the result of ``name?``.

    The kernel merges the output of ranks: equal text appears once, and differing text appears with
    its ranks.
    """
    page = text.get("text/plain", "") if isinstance(text, dict) else str(text)
    page = _CELL_PATH.sub("a cell", page)  # its name differs between ranks
    sys.stdout.write(f"{page.rstrip()}\n")


@contextmanager
def pages_printed(shell: Any) -> Iterator[None]:
    """Print the pages of the shell while the body runs."""
    pager = shell.hooks.show_in_pager
    shell.hooks.show_in_pager = MethodType(_print_page, shell)
    try:
        yield
    finally:
        shell.hooks.show_in_pager = pager
