"""Formats errors of cells, in limited time and length.

IPython's own formatter parses every file of a traceback and shows every frame. This takes
9 s for an interrupt during a large import, and gives 200 KB for an infinite recursion. Here
only source lines are read, and frames in the middle are left out. A time limit applies to the
methods of a user's exception that produce its text.
"""

from __future__ import annotations

import builtins
import linecache
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from workbench.rank import gpu_errors, training_errors
from workbench.rank.traceback_frames import TracebackFrame, TracebackStyle

MAX_FRAMES = 20
"""Maximum number of shown frames of the error."""
_MAX_FRAMES_OF_OTHERS = 6
"""Maximum number of shown frames of each error that led to it."""
_CHAIN = 6
_GROUP = 5
_DEPTH = 3
_CONTEXT = 2
_NOTES = 10
_TEXT = 20_000
_TEXT_S = 2.0
_SOURCE_BYTES = 8 << 20
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT_OF = "During handling of the above exception, another exception occurred:"
_BUILT_IN_STR = {BaseException.__str__, OSError.__str__, KeyError.__str__}


def describe(shell: Any, error: BaseException) -> tuple[str, str]:
    """Return the message and the traceback of a cell's error, in the shell's colours."""
    texts = SafeText()
    render = getattr(error, "_render_traceback_", None)
    if render is not None:
        return texts.of_error(error), texts.make(lambda: "\n".join(render()))
    message = gpu_errors.explained(error, texts.of_error(error))
    paint = TracebackStyle(str(getattr(shell, "colors", "")).lower() != "nocolor")
    if explained := training_errors.explained(error, message):
        return explained, _cell_lines(error, paint)
    if _is_one_line(error) or getattr(shell.InteractiveTB, "mode", "") == "Minimal":
        return message, paint.error(type(error).__name__, message)
    if isinstance(error, KeyboardInterrupt):
        return message, _ErrorFormatter(texts, paint, 3, 0).render(error)
    others, this = (
        _ErrorFormatter(texts, paint, most) for most in (_MAX_FRAMES_OF_OTHERS, MAX_FRAMES)
    )
    return message, "\n\n".join([*_earlier(error, others), this.render(error, message)])


def _is_one_line(error: BaseException) -> bool:
    """Return whether the error needs no traceback, as after quit() or invalid use of a magic."""
    from IPython.core.error import UsageError

    return isinstance(error, (SystemExit, UsageError))


def _earlier(error: BaseException, formatter: _ErrorFormatter) -> Iterator[str]:
    """Yield the text of each error that led to `error`, beginning with the first error."""
    chain: list[tuple[BaseException, str]] = []
    seen = {id(error)}
    while True:
        if error.__cause__ is not None:
            error = error.__cause__
            relation = _CAUSE
        elif error.__context__ is not None and not error.__suppress_context__:
            error = error.__context__
            relation = _CONTEXT_OF
        else:
            break
        if id(error) in seen:
            break
        seen.add(id(error))
        chain.append((error, relation))
    chain.reverse()
    hidden = max(0, len(chain) - _CHAIN)
    for number, (earlier, relation) in enumerate(chain):
        if not _CHAIN // 2 <= number < _CHAIN // 2 + hidden:
            yield f"{formatter.render(earlier)}\n\n{relation}"
        elif number == _CHAIN // 2:
            yield f"[... {hidden:,} errors between them are left out ...]"


class _ErrorFormatter:
    """Formats one error: heading, frames, message, and the members of an exception group.

    Parameters
    ----------
    texts, paint
        Produce the text of exceptions, and format the parts of a traceback.
    most
        Maximum number of frames to show.
    context
        Number of source lines to show before and after the line of each frame.
    """

    def __init__(
        self, texts: SafeText, paint: TracebackStyle, most: int, context: int = _CONTEXT
    ) -> None:
        self._texts = texts
        self._paint = paint
        self._most = most
        self._context = context

    def render(self, error: BaseException, message: str | None = None) -> str:
        """Return the error as text."""
        return f"{self._paint.heading(type(error).__name__)}\n{self._body(error, message)}"

    def _body(self, error: BaseException, message: str | None, depth: int = 0) -> str:
        parts = _frames(error, self._paint, self._most, self._context)
        parts.append(self._last_lines(error, message))
        if isinstance(error, getattr(builtins, "BaseExceptionGroup", ())) and depth < _DEPTH:
            members: tuple[BaseException, ...] = getattr(error, "exceptions", ())
            inner = _ErrorFormatter(self._texts, self._paint, 2, 0)
            for number, member in enumerate(members[:_GROUP], 1):
                body = inner._body(member, None, depth + 1)
                parts.append(f"  {number} of {len(members):,}:\n{_indented(body)}")
            if len(members) > _GROUP:
                parts.append(f"  [... {len(members) - _GROUP:,} more errors are left out ...]")
        return "\n\n".join(parts)

    def _last_lines(self, error: BaseException, message: str | None) -> str:
        if isinstance(error, SyntaxError):
            kind = type(error)
            return self._texts.make(
                lambda: "".join(traceback.format_exception_only(kind, error)).rstrip()
            )
        notes = islice(getattr(error, "__notes__", None) or (), _NOTES)
        text = self._texts.of_error(error) if message is None else message
        return "\n".join(
            [self._paint.error(type(error).__name__, text), *map(self._texts.of, notes)]
        )


def _frames(error: BaseException, paint: TracebackStyle, most: int, context: int) -> list[str]:
    """Return the text of the frames to show, with a note where frames are left out."""
    places = _places(error)
    if isinstance(error, SyntaxError) and places and _is_ours(places[-1].file):
        places.pop()  # IPython's compiler; the error itself shows the line
    chosen = _chosen(places, most)
    parts = []
    before = -1
    for number in chosen:
        if number - before > 1:
            parts.append(_left_out(places[before + 1 : number]))
        parts.append(_frame(places[number], paint, context))
        before = number
    return parts


def _places(error: BaseException) -> list[TracebackFrame]:
    """Return the frames from the cell's code to the innermost, without this package's frames."""
    places = []
    walk = error.__traceback__
    while walk is not None:
        line = walk.tb_lineno or walk.tb_frame.f_lineno
        places.append(TracebackFrame(walk.tb_frame, line, walk.tb_lasti))
        walk = walk.tb_next
    first_in_cell = next((index for index, frame in enumerate(places) if frame.in_cell), None)
    below = places[first_in_cell or 0 :]
    # hooks of this package run between frames of PyTorch, and a recursion may exceed its limit in
    # a hook
    cause = [] if isinstance(error, RecursionError) else below[-1:]
    return [frame for frame in below if frame in cause or not _is_ours(frame.file)]


def _is_ours(file: str) -> bool:
    return f"{os.sep}IPython{os.sep}" in file or file.startswith(_OUR_FOLDER)


_OUR_FOLDER = str(Path(__file__).parent)


def _chosen(places: list[TracebackFrame], most: int) -> list[int]:
    """Return the numbers of the frames to show: both ends, then frames of the user's code."""
    count = len(places)
    if count <= most:
        return list(range(count))
    ends = max(1, most // 5)
    chosen = {0, count - 1, *range(ends), *range(count - ends, count)}
    shown = {(places[number].file, places[number].line) for number in chosen}
    for wanted in (lambda frame: frame.in_cell, lambda frame: not frame.in_library):
        for number in range(count - 1, -1, -1):  # the innermost frames first
            if len(chosen) >= most:
                break
            frame = places[number]
            if wanted(frame) and (frame.file, frame.line) not in shown:
                chosen.add(number)
                shown.add((frame.file, frame.line))
    return sorted(chosen)


def _cell_lines(error: BaseException, paint: TracebackStyle) -> str:
    """Return only the first and the last line of the cell in a traceback."""
    places = [frame for frame in _places(error) if frame.in_cell]
    return "\n".join(_frame(frame, paint, 0) for frame in dict.fromkeys(places[:1] + places[-1:]))


def _left_out(places: list[TracebackFrame]) -> str:
    names = list(dict.fromkeys(frame.frame.f_code.co_name for frame in places))
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    word = "frame is" if len(places) == 1 else "frames are"
    return f"[... {len(places):,} {word} left out, in {listed} ...]"


def _frame(frame: TracebackFrame, paint: TracebackStyle, context: int) -> str:
    """Return a frame's heading and the source around its line."""
    code = frame.frame.f_code
    lines = _source(frame)
    begin = max(code.co_firstlineno, frame.line - context, 1) if lines else 0
    if code.co_name == "<module>":
        begin = max(1, frame.line - context)
    shown = [paint.location(frame)]
    numbers = range(begin, min(frame.line + context, len(lines)) + 1) if lines else range(0)
    for number, text in zip(numbers, paint.code([lines[n - 1] for n in numbers]), strict=True):
        shown.append(paint.line(number, text, number == frame.line))
        if number == frame.line:
            shown += frame.underline(lines[number - 1].rstrip())
    return "\n".join(shown)


def _source(frame: TracebackFrame) -> list[str]:
    """Return the lines of a frame's file; an empty list if it is missing or very large."""
    file = frame.file
    if file not in linecache.cache:
        try:
            if Path(file).stat().st_size > _SOURCE_BYTES:
                return []
        except OSError:
            return []
    lines = linecache.getlines(file, frame.frame.f_globals)
    return lines if frame.line <= len(lines) else []


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _shortened(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    half = _TEXT // 2
    return (
        f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out ...]\n{text[-half:]}"
    )


class SafeText:
    """Calls the user's code that produces text, with one time limit for all calls.

    Examples
    --------
    >>> SafeText().of([1, 2])
    '[1, 2]'
    >>> SafeText().make(lambda: 1 / 0)
    '<its text cannot be made: ZeroDivisionError>'
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + _TEXT_S

    def of(self, value: object) -> str:
        """Return ``str(value)``, shortened if it is long."""
        return self.make(partial(str, value))

    def of_error(self, error: BaseException) -> str:
        """Return an error's message."""
        if type(error).__str__ in _BUILT_IN_STR and all(type(value) is str for value in error.args):
            # only Python's own code is called, so no thread is needed
            return _shortened(str(error))
        return self.of(error)

    def make(self, make: Callable[[], str]) -> str:
        """Return the result of `make`, or a note if it raises or takes too long."""
        made: list[str] = []

        def follow() -> None:
            try:
                made.append(_shortened(make()))
            except BaseException as error:  # noqa: BLE001 - a user's __str__ may raise anything
                made.append(f"<its text cannot be made: {type(error).__name__}>")

        left_s = self._until - time.monotonic()
        if left_s > 0:
            thread = threading.Thread(target=follow, name="workbench-error-text", daemon=True)
            thread.start()
            thread.join(left_s)
        return made[0] if made else f"<its text was not made within {_TEXT_S:g} s>"
