"""Replaces what waits for a user's input, which a rank cannot get."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from workbench.rank.traceback_frames import CELL_FILE

_CELL_PATH = re.compile(rf"\S*{re.escape(CELL_FILE)}\S*")


class RankIsNotInteractive(RuntimeError):
    """A cell asks for input, which is not supported in a rank."""

    def _render_traceback_(self) -> list[str]:
        """Return no traceback."""
        return []


def _no_input(prompt: object = "", function: str = "input") -> str:
    raise RankIsNotInteractive(
        f"{function}({str(prompt)!r}): not supported in a rank yet. Ask in a cell of the notebook, "
        "and send the answer with %push."
    )


def _no_password(prompt: str = "Password: ", stream: object = None) -> str:  # noqa: ARG001
    return _no_input(prompt, "getpass")


def _no_debugger(*_: object, **__: object) -> None:
    raise RankIsNotInteractive(
        "breakpoint(): a debugger is not supported in a rank yet. Print what you want to see, or "
        "%pull it into the notebook."
    )


def _print_page(shell: object, text: Any, *_: object, **__: object) -> None:  # noqa: ARG001
    """Print what IPython's pager would show, such as the result of ``name?``.

    The kernel merges the output of ranks: what is equal appears once, and differences with their
    ranks.
    """
    page = text.get("text/plain", "") if isinstance(text, dict) else str(text)
    page = _CELL_PATH.sub("a cell", page)  # its name differs between ranks
    sys.stdout.write(f"{page.rstrip()}\n")


@contextmanager
def not_interactive(shell: Any) -> Iterator[None]:
    """Let functions that wait for a user's input raise an error in the body."""
    import getpass
    import pdb

    replaced: list[tuple[object, str, object]] = [
        (builtins, "input", _no_input),
        (getpass, "getpass", _no_password),
        (sys, "breakpointhook", _no_debugger),
        (pdb.Pdb, "interaction", _no_debugger),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    pager = shell.hooks.show_in_pager
    for owner, name, value in replaced:
        setattr(owner, name, value)
    shell.hooks.show_in_pager = MethodType(_print_page, shell)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
        shell.hooks.show_in_pager = pager
