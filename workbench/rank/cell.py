"""Running one cell in a rank, as a notebook would."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from IPython.core.displayhook import DisplayHook

from workbench.rank.interrupts import Interrupts
from workbench.rank.output import Capture, OutputChannel

VALUE_LIMIT_BYTES = 64 << 20
"""A last expression's value beyond this stays in its rank."""


@dataclass(frozen=True)
class CellResult:
    """How a cell ended in this rank.

    Attributes
    ----------
    error
        ``None``, or name, message and traceback of what it raised.
    value
        The last expression's value, pickled, or None where there is none to send.
    kept
        Why a value was not sent, or an empty string.
    """

    error: dict[str, str] | None
    value: bytes | None
    kept: str


def run(
    shell: Any, number: int, source: str, capture: Capture, interrupts: Interrupts
) -> CellResult:
    """Run `source` in the shell's namespace, which `interrupts` may end."""
    caught = _Caught(shell, source, capture.channel)
    try:
        with capture(number), caught.replaced(), interrupts.allowed():
            shell.run_cell(source, store_history=False)
    except KeyboardInterrupt:  # it came before the cell's code, or after it
        caught.error = {"name": "KeyboardInterrupt", "message": "", "traceback": ""}
    return CellResult(caught.error, *_pickled(caught.value))


def failed(error: BaseException) -> CellResult:
    """Return the result of a cell that failed outside its own code."""
    name, text = type(error).__name__, "".join(traceback.format_exception(error))
    return CellResult({"name": name, "message": str(error), "traceback": text}, None, "")


class _Caught:
    """Catches what the shell would show: the last value and the error."""

    def __init__(self, shell: Any, source: str, channel: OutputChannel) -> None:
        self._shell = shell
        self._quiet = DisplayHook.semicolon_at_end_of_expression(source)
        self._channel = channel
        self.value: Any = None
        self.error: dict[str, str] | None = None

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Put the catching functions in the shell's place."""
        shell = self._shell
        hook, shell.display_trap.hook = shell.display_trap.hook, self._on_value
        show, shell._showtraceback = shell._showtraceback, self._on_error
        runner, shell.loop_runner = shell.loop_runner, _run_coroutine
        try:
            yield
        finally:
            shell.display_trap.hook = hook
            shell._showtraceback = show
            shell.loop_runner = runner

    def _on_value(self, value: Any) -> None:
        if value is None:
            return
        self._shell.user_ns["_"] = value
        self.value = value
        if not self._quiet:
            self._channel.show(*self._shell.display_formatter.format(value))

    def _on_error(self, kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        text = "\n".join(lines)
        self.error = {"name": kind.__name__, "message": str(error), "traceback": text}


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a cell's top-level await; the engine's own loop stands still, as for any cell."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
        asyncio._set_running_loop(outer)


def _pickled(value: Any) -> tuple[bytes | None, str]:
    """Return the value as bytes, or why it stays here."""
    if value is None:
        return None, ""
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return None, f"{type(value).__name__} cannot be pickled: {error}"
    if len(data) > VALUE_LIMIT_BYTES:
        return None, f"{type(value).__name__} has {len(data):,} bytes, too many to send unasked"
    return data, ""
