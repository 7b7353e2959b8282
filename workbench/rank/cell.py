"""Runs a cell in a rank, with the semantics of a cell in a notebook."""

from __future__ import annotations

import asyncio
import bdb
import builtins
import contextlib
import os
import pickle
import re
import sys
import tokenize
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from IPython.core.async_helpers import get_asyncio_loop
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import ExecutionResult

from workbench.errors import RankError
from workbench.rank import tracebacks
from workbench.rank.interrupts import Interrupts
from workbench.rank.measurement import measure
from workbench.rank.output import Capture, OutputChannel
from workbench.rank.process_state import GradientMode, ProcessState
from workbench.rank.traceback_frames import CELL_FILE
from workbench.wire.rank_messages import MEASUREMENT

VALUE_LIMIT_BYTES = 64 << 20
"""A larger value of a last expression is not sent to the kernel."""
_LITTLE_BYTES = 256 << 20
"""If less memory is left after an error about memory, the message names the limit."""


@dataclass(frozen=True)
class CellResult:
    """The result of a cell; the fields are as in `CellEnded`."""

    error: RankError | None
    value: bytes | None
    not_sent: str


def run(
    shell: Any,
    number: int,
    source: str,
    capture: Capture,
    interrupts: Interrupts,
    state: ProcessState,
    names: Mapping[str, Any],
) -> CellResult:
    """Run `source` in the shell's namespace, and capture its output, its value and its error.

    A measurement has only the variables `names` instead.
    """
    mode = GradientMode()
    process = os.getpid()
    caught = _ResultCatcher(shell, source, capture.channel)
    state.reserve.take()
    with capture(number), caught.installed():
        try:
            with _session_loop(), interrupts.allowed():
                _free_last_frames(source)
                done = _execute(shell, source, names, caught, capture.channel)
                if os.getpid() != process:
                    _end_child(caught.error)
                interrupts.code_ended()
                if repaired := state.repair():
                    capture.channel.write("stderr", repaired)
                raised = caught.error or done.error_before_exec or done.error_in_exec
                if isinstance(done.error_before_exec, SyntaxError):
                    # omit the compiler's frames, and a file name that contains the process id
                    done.error_before_exec.__traceback__ = None
                    done.error_before_exec.filename = "Cell"
                if raised is not None:
                    state.reserve.release()
                error = None if raised is None else _described(shell, raised)
                if error is not None and _NO_MEMORY.search(f"{error.name}: {error.message}"):
                    error = _with_shortage(error, state)
                # these results refer to the error, and its frames refer to the results. The cycle
                # would keep tensors alive, and DataLoader workers that take 5 s each to collect
                done.error_before_exec = done.error_in_exec = caught.error = raised = None
        except KeyboardInterrupt:  # just before or after the code, or while formatting its error
            error = _INTERRUPTED
    interrupts.code_ended()
    if error is not None and error.name == "KeyboardInterrupt":
        mode.restore()
    if error is not None:
        return CellResult(error, None, "")
    try:
        with interrupts.allowed(earlier=False):
            return CellResult(None, *_pickled(caught.value))
    except KeyboardInterrupt:
        return CellResult(_INTERRUPTED, None, "")


def _execute(
    shell: Any,
    source: str,
    names: Mapping[str, Any],
    caught: _ResultCatcher,
    channel: OutputChannel,
) -> ExecutionResult:
    """Run a cell in the shell's namespace, or a measurement among `names`."""
    if not source.startswith(MEASUREMENT):
        return shell.run_cell(source, store_history=False)
    done = _measured(source, names, channel)
    caught.value = done.result
    return done


def _measured(source: str, names: Mapping[str, Any], channel: OutputChannel) -> ExecutionResult:
    """Return the result of a measurement in the form that the shell uses for a cell."""
    result = ExecutionResult(None)
    try:
        result.result = measure(source, names, lambda text: channel.write("stdout", f"{text}\n"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the kernel raises it, as for a cell
        result.error_in_exec = error
    return result


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that the cell has forked, once the process reaches the end of the cell.

    The process shares the rank's connections, but lacks the threads that serve them.
    """
    status = 0
    with contextlib.suppress(BaseException):  # it must never continue as a second rank
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = error.code or 0
        elif error is not None:
            status = 1
            is_exit = isinstance(error, SystemExit)
            os.write(2, (f"{error}\n" if is_exit else _plain_traceback(error)).encode())
    os._exit(status & 0xFF)


def _plain_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-tracebacks.MAX_FRAMES))


def failed(error: BaseException) -> CellResult:
    """Return the result of a cell after an error in this package instead of the cell's code."""
    message = tracebacks.SafeText().of_error(error)
    return CellResult(RankError(type(error).__name__, message, _plain_traceback(error)), None, "")


_INTERRUPTED = RankError("KeyboardInterrupt", "", "")


def _described(shell: Any, error: BaseException) -> RankError:
    """Return the name, message and traceback of a cell's exception."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        return RankError(name, _exit_message(error), "")
    if isinstance(error, bdb.BdbQuit):
        return RankError(name, _DEBUGGER_QUIT, "")
    try:
        message, text = tracebacks.describe(shell, error)
    except Exception as other:  # noqa: BLE001 - methods of a user's exception may raise anything
        message = f"<cannot be shown: {type(other).__name__}>"
        text = ""
    return RankError(name, message, text)


_POST_MORTEM = re.compile(
    r"%debug\b|^\s*debug\b|line_magic\(.debug|\bpm\(|post_mortem"
    r"|\blast_(value|traceback|exc)\b|__traceback__",
    re.MULTILINE,
)
"""Matches source that needs the variables of the functions that the last error has left."""


def _free_last_frames(source: str) -> None:
    """Free the variables of the functions that the last error has left, such as tensors on a GPU.

    The text of the traceback stays the same. The variables remain for a cell that needs them, for
    example with `%debug`.
    """
    if _POST_MORTEM.search(source):
        return
    seen: set[int] = set()
    waiting: list[BaseException | None] = [getattr(sys, "last_value", None)]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        waiting += [error.__cause__, error.__context__]
        if isinstance(error, getattr(builtins, "BaseExceptionGroup", ())):
            waiting += getattr(error, "exceptions", ())


_NO_MEMORY = re.compile(r"MemoryError|bad_alloc|allocate memory|start new thread")


def _with_shortage(error: RankError, state: ProcessState) -> RankError:
    """Return the error with the limit of memory in its message, if the process is near it."""
    shortage = state.reserve.shortage(_LITTLE_BYTES)
    parts = filter(None, [error.message, shortage])
    return replace(error, message=": ".join(parts))


def leave() -> None:
    """End the cell; replaces the shell's `ask_exit`, because quit() would end the rank."""
    raise SystemExit(_QUIT)


_QUIT = "quit()"
_DEBUGGER_QUIT = (
    "the debugger's quit has ended the cell on this rank, not the rank: variables are kept. "
    "To go on with the cell instead, use continue."
)


def _exit_message(error: SystemExit) -> str:
    """Return the message for a cell that has called quit() or sys.exit()."""
    code = "" if error.code is None else tracebacks.SafeText().of_error(error)
    call = _QUIT if error.code is _QUIT else f"sys.exit({code})"
    return (
        f"{call} has ended the cell, not the rank: variables are kept. "
        "To end the ranks, use %cluster stop."
    )


class _ResultCatcher:
    """Receives the value and the error of a cell in place of the shell's display functions."""

    def __init__(self, shell: Any, source: str, channel: OutputChannel) -> None:
        self._shell = shell
        self._source = source
        self._channel = channel
        self.value: Any = None
        self.error: BaseException | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the shell's display functions while the body runs."""
        shell = self._shell
        trap = self._shell.display_trap
        functions: dict[str, Any] = {
            "showtraceback": self._show_error,
            "showsyntaxerror": self._show_error,
            "loop_runner": _run_coroutine,
        }
        hook = trap.hook
        trap.hook = self._on_value
        if not isinstance(shell.compile.get_code_name, _CellNames):
            shell.compile.get_code_name = _CellNames(shell.compile.get_code_name)
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

    def _show_error(self, exc_info: Any = None, *_: Any, **__: Any) -> None:
        """Keep the error for `run`, `%tb` and debuggers; show the last error if `%tb` calls."""
        raised = exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1]
        if isinstance(exc_info, tuple) and self._channel.areas.current() is not None:
            self._show_error_of_widget(exc_info[1])
            return
        if raised is not None:
            self.error = raised
            sys.last_type = type(raised)
            sys.last_value = raised
            sys.last_traceback = raised.__traceback__
            return
        last: BaseException | None = getattr(sys, "last_value", None)
        if last is not None:
            sys.stderr.write(tracebacks.describe(self._shell, last)[1] + "\n")

    def _show_error_of_widget(self, error: BaseException) -> None:
        """Print an error that an ``ipywidgets.Output`` has caught; the cell continues.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            The cell is to end.
        """
        if not isinstance(error, Exception):
            raise error
        self._channel.write("stderr", tracebacks.describe(self._shell, error)[1] + "\n")


class _CellNames:
    """Names a cell's file without the process id, because the id differs between ranks."""

    def __init__(self, names: Callable[..., str]) -> None:
        self._names = names

    def __call__(self, *args: Any) -> str:
        """Return the file name with which a cell is compiled; the file does not exist."""
        return _PROCESS_FOLDER.sub(f"{CELL_FILE}cell", self._names(*args))


_PROCESS_FOLDER = re.compile(rf"\b{CELL_FILE}\d+\b")


def _ends_with_semicolon(source: str) -> bool:
    """Return whether the cell ends with a semicolon, which hides its value.

    Examples
    --------
    >>> _ends_with_semicolon("x = 1; x")
    False
    >>> _ends_with_semicolon("x;")
    True
    """
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(source))
    except (SyntaxError, tokenize.TokenError):  # the text of a cell magic, or a shell command
        return False


@contextmanager
def _session_loop() -> Iterator[None]:
    """Make the cells' event loop the running one in the body; the engine's own loop waits.

    As in IPython, the loop lives for the session: a later cell can await an object that an
    earlier cell has created in it. Its tasks make progress while a cell awaits.
    """
    engine_loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    asyncio._set_running_loop(get_asyncio_loop())
    try:
        yield
    finally:
        asyncio._set_running_loop(engine_loop)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a cell that awaits, in the event loop of the session."""
    session_loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    loop = get_asyncio_loop()
    if loop.is_running():  # the cell that awaits runs another one
        loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    finally:
        while not task.done():  # interrupted: without this it would continue in a later cell
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
                loop.run_until_complete(task)
        asyncio._set_running_loop(session_loop)


def _pickled(value: Any) -> tuple[bytes | None, str]:
    """Return the pickled value, or the reason for not sending it."""
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
        return None, f"{type(value).__name__} has {len(data):,} bytes, too many to send with a cell"
    return data, ""
