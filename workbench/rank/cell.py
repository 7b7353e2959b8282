"""Running one cell in a rank, as a notebook would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
import tokenize
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from IPython.core.displayhook import DisplayHook

from workbench.rank import tracebacks
from workbench.rank.interrupts import Interrupts
from workbench.rank.output import Capture, OutputChannel
from workbench.rank.process_state import GradientMode, ProcessState

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
    shell: Any,
    number: int,
    source: str,
    capture: Capture,
    interrupts: Interrupts,
    state: ProcessState,
) -> CellResult:
    """Run `source` in the shell's namespace, which `interrupts` may end; then repair `state`."""
    mode, process = GradientMode(), os.getpid()
    caught = _Caught(shell, source, capture.channel)
    with capture(number), caught.replaced():
        try:
            with interrupts.allowed():
                done = shell.run_cell(source, store_history=False)
                if os.getpid() != process:
                    _end_child(caught.error)
                interrupts.begin_to_end()
                if repaired := state.repair():
                    capture.channel.write("stderr", repaired)
                raised = caught.error or done.error_before_exec or done.error_in_exec
                if isinstance(done.error_before_exec, SyntaxError):
                    # neither the compiler's frames nor a file's name that holds the process
                    done.error_before_exec.__traceback__ = None
                    done.error_before_exec.filename = "Cell"
                error = None if raised is None else _content(shell, raised)
                # the error's own frames lead back to these: in such a circle its tensors and a
                # DataLoader's workers wait for the garbage collector, which joins each for 5 s
                done.error_before_exec = done.error_in_exec = caught.error = raised = None
        except KeyboardInterrupt:  # around the code, or while its error is described
            error = _INTERRUPTED
    interrupts.begin_to_end()
    if error is not None and error["name"] == "KeyboardInterrupt":
        mode.restore()
    if error is not None:
        return CellResult(error, None, "")
    try:
        with interrupts.allowed(earlier=False):
            return CellResult(None, *_pickled(caught.value))
    except KeyboardInterrupt:
        return CellResult(_INTERRUPTED, None, "")


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that a cell has forked, and that has come to the end of the cell as well.

    It has the rank's connections, and none of the threads that serve them.
    """
    status = 0
    with contextlib.suppress(BaseException):  # whatever happens, it must not become a second rank
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = error.code or 0
        elif error is not None:
            status = 1
            only = isinstance(error, SystemExit)
            os.write(2, (f"{error}\n" if only else _plain_traceback(error)).encode())
    os._exit(status & 0xFF)


def _plain_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-tracebacks.FRAMES))


def failed(error: BaseException) -> CellResult:
    """Return the result of a cell that failed outside its own code."""
    content = {"name": type(error).__name__, "message": tracebacks.Texts().of_error(error)}
    return CellResult({**content, "traceback": _plain_traceback(error)}, None, "")


_INTERRUPTED = {"name": "KeyboardInterrupt", "message": "", "traceback": ""}


def _content(shell: Any, error: BaseException) -> dict[str, str]:
    """Return name, message and traceback of what a cell has raised."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        return {"name": name, "message": _left(error), "traceback": ""}
    try:
        message, text = tracebacks.describe(shell, error)
    except Exception as other:  # noqa: BLE001 - an exception of a user's may refuse anything
        message, text = f"<cannot be shown: {type(other).__name__}>", ""
    return {"name": name, "message": message, "traceback": text}


def leave() -> None:
    """Stand in for a shell's `ask_exit`, with which quit() would end the rank after the cell."""
    raise SystemExit(_QUIT)


_QUIT = "quit()"


def _left(error: SystemExit) -> str:
    """Return what a cell has done that called quit() or sys.exit()."""
    code = "" if error.code is None else tracebacks.Texts().of_error(error)
    call = _QUIT if error.code is _QUIT else f"sys.exit({code})"
    return (
        f"{call} has ended the cell, not the rank, whose variables are kept. "
        "To end the ranks, use %cluster stop."
    )


class _Caught:
    """Catches what the shell would show: the last value and the error."""

    def __init__(self, shell: Any, source: str, channel: OutputChannel) -> None:
        self._shell = shell
        self._source = source
        self._channel = channel
        self.value: Any = None
        self.error: BaseException | None = None

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Put the catching functions in the shell's place."""
        shell, trap = self._shell, self._shell.display_trap
        functions: dict[str, Any] = {
            "showtraceback": self._show_error,
            "showsyntaxerror": self._show_error,
            "loop_runner": _run_coroutine,
        }
        hook, trap.hook = trap.hook, self._on_value
        saved = {name: getattr(shell, name) for name in functions}
        for name, function in functions.items():
            setattr(shell, name, function)
        try:
            yield
        finally:
            trap.hook = hook
            for name, function in saved.items():
                setattr(shell, name, function)

    def _on_value(self, value: Any) -> None:
        if value is None:
            return
        self._shell.user_ns["_"] = value
        self.value = value
        if not _ends_with_semicolon(self._source):
            self._channel.show(*self._shell.display_formatter.format(value))

    def _show_error(self, given: Any = None, *_: Any, **__: Any) -> None:
        """Keep the error for `run`, `%tb` and debuggers; called by `%tb`, show the last one."""
        raised = given[1] if isinstance(given, tuple) else sys.exc_info()[1]
        if raised is not None:
            self.error = raised
            sys.last_type, sys.last_value = type(raised), raised
            sys.last_traceback = raised.__traceback__
            return
        last: BaseException | None = getattr(sys, "last_value", None)
        if last is not None:
            sys.stderr.write(tracebacks.describe(self._shell, last)[1] + "\n")


def _ends_with_semicolon(source: str) -> bool:
    """Whether the value of a cell is not to be shown; what magics and shells read is no Python."""
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(source))
    except (SyntaxError, tokenize.TokenError):
        return False


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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return (
            None,
            f"{type(value).__name__} cannot be pickled: {str(error) or type(error).__name__}",
        )
    if len(data) > VALUE_LIMIT_BYTES:
        return None, f"{type(value).__name__} has {len(data):,} bytes, too many to send unasked"
    return data, ""
