"""Replaces IPython's pager, which a rank does not have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any


def _no_pager(shell: object, text: object, *_: object, **__: object) -> None:  # noqa: ARG001
    """Replace IPython's pager, which shows the result of ``name?``."""
    sys.stderr.write(
        "name? and ?name: not supported in a rank yet. Use help(name) or print(name.__doc__).\n"
    )


@contextmanager
def not_interactive(shell: Any) -> Iterator[None]:
    """Replace the pager in the body."""
    pager = shell.hooks.show_in_pager
    shell.hooks.show_in_pager = MethodType(_no_pager, shell)
    try:
        yield
    finally:
        shell.hooks.show_in_pager = pager
