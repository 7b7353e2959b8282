"""Replaces what waits for a user's input, which a rank cannot get."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any


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


def _no_pager(shell: object, text: object, *_: object, **__: object) -> None:  # noqa: ARG001
    """Replace IPython's pager, which shows the result of ``name?``."""
    sys.stderr.write(
        "name? and ?name: not supported in a rank yet. Use help(name) or print(name.__doc__).\n"
    )


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
    shell.hooks.show_in_pager = MethodType(_no_pager, shell)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
        shell.hooks.show_in_pager = pager
