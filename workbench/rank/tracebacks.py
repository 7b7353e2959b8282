"""The text of an error, in a bounded time and length whatever was raised.

IPython's own formatter parses every file of a traceback and shows every frame:
9 s for an interrupt in the middle of a large import, 200 KB for a recursion.
Here only source lines are read, the frames in the middle are counted instead
of shown, and the texts of a user's exception get a time limit.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

FRAMES = 20
"""Frames shown of the error itself."""
_FRAMES_OF_OTHERS = 6
"""The same for an error that led to it, or for one of a group."""
_CHAIN = 6
_GROUP = 5
_DEPTH = 3
_CONTEXT = 2
_LINE = 240
_TEXT = 20_000
_TEXT_S = 2.0
_SOURCE_BYTES = 8 << 20
CELL_FILE = "ipykernel_"
"""ipykernel compiles each cell under a file name with this in it."""
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT_OF = "During handling of the above exception, another exception occurred:"


class _Place(NamedTuple):
    """A frame of a traceback, and the line at which it was left."""

    frame: FrameType
    line: int
    instruction: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def in_cell(self) -> bool:
        return CELL_FILE in self.file

    @property
    def foreign(self) -> bool:
        """Whether the code is a library's rather than the user's."""
        return self.file.startswith(_LIBRARIES) or "-packages" in self.file

    @property
    def columns(self) -> tuple[int, int] | None:
        """Which columns of the line were running, where Python tells (from 3.11 on)."""
        tell = getattr(self.frame.f_code, "co_positions", None)
        if tell is None:
            return None
        found = next(islice(tell(), self.instruction // 2, None), (None,) * 4)
        if None in found or found[:2] != (self.line, self.line):
            return None
        return found[2], found[3]


_PLAIN = {BaseException.__str__, OSError.__str__, KeyError.__str__}


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, cut where it is long; why not, where it fails or takes long."""
    if all(type(value) is str and len(value) < _TEXT for value in error.args) and (
        type(error).__str__ in _PLAIN
    ):
        return str(error)
    return _limited(partial(_text, error))


def render(shell: Any, error: BaseException) -> str:
    """Return what to show for an error that a cell has raised, in the shell's colours."""
    paint = _Painter(str(getattr(shell, "colors", "")).lower() != "nocolor")
    if _is_one_line(error):
        return paint.error(type(error).__name__, message_of(error))
    own = getattr(error, "_render_traceback_", None)
    if own is not None:
        return _limited(lambda: _shortened("\n".join(own())))
    short = isinstance(error, KeyboardInterrupt)
    parts = [] if short else list(_earlier(error, paint))
    parts.append(_one(error, paint, 3 if short else FRAMES, 0 if short else _CONTEXT))
    return "\n\n".join(parts)


def _is_one_line(error: BaseException) -> bool:
    """Whether the place of an error says nothing: the cell was left, or a magic misused."""
    from IPython.core.error import UsageError

    return isinstance(error, (SystemExit, UsageError))


def _earlier(error: BaseException, paint: _Painter) -> Iterator[str]:
    """Return the errors that led to this one, the first one first."""
    chain: list[tuple[BaseException, str]] = []
    seen = {id(error)}
    while True:
        if error.__cause__ is not None:
            error, why = error.__cause__, _CAUSE
        elif error.__context__ is not None and not error.__suppress_context__:
            error, why = error.__context__, _CONTEXT_OF
        else:
            break
        if id(error) in seen:
            break
        seen.add(id(error))
        chain.append((error, why))
    for number, (earlier, why) in enumerate(reversed(chain)):
        hidden = len(chain) - _CHAIN
        if hidden > 0 and _CHAIN // 2 <= number < _CHAIN // 2 + hidden:
            if number == _CHAIN // 2:
                yield f"[... {hidden:,} errors between them are left out ...]"
            continue
        yield _one(earlier, paint, _FRAMES_OF_OTHERS, _CONTEXT) + f"\n\n{why}"


def _one(error: BaseException, paint: _Painter, most: int, context: int, depth: int = 0) -> str:
    """Return one error: a heading, its frames, its message, and what a group holds."""
    name = type(error).__name__
    parts = [paint.heading(name)] if depth == 0 else []
    parts += _frames(error, paint, most, context)
    parts.append(_last_lines(error, paint))
    if isinstance(error, getattr(builtins, "BaseExceptionGroup", ())) and depth < _DEPTH:
        members: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        for number, member in enumerate(islice(members, _GROUP), 1):
            inner = _one(member, paint, 2, 0, depth + 1)
            parts.append(f"  {number} of {len(members):,}:\n{_indented(inner)}")
        if len(members) > _GROUP:
            parts.append(f"  [... {len(members) - _GROUP:,} more errors are left out ...]")
    return "\n\n".join(parts)


def _last_lines(error: BaseException, paint: _Painter) -> str:
    name = type(error).__name__
    if isinstance(error, SyntaxError):
        lines = _limited(lambda: "".join(traceback.format_exception_only(type(error), error)))
        return _shortened(lines.rstrip())
    notes = getattr(error, "__notes__", None) or ()
    told = [_limited(partial(_text, note)) for note in islice(notes, 10)]
    return "\n".join([paint.error(name, message_of(error)), *told])


def _frames(error: BaseException, paint: _Painter, most: int, context: int) -> list[str]:
    """Return the frames worth showing, with a line that counts those between them."""
    places = _places(error.__traceback__)
    chosen = _chosen(places, most)
    parts, before = [], -1
    for number in chosen:
        if number - before > 1:
            parts.append(_left_out(places[before + 1 : number]))
        parts.append(_frame(places[number], paint, context))
        before = number
    return parts


def _places(walk: TracebackType | None) -> list[_Place]:
    """Return the frames from the cell's own code downward."""
    places = []
    while walk is not None:
        line = walk.tb_lineno or walk.tb_frame.f_lineno
        places.append(_Place(walk.tb_frame, line, walk.tb_lasti))
        walk = walk.tb_next
    own = next((number for number, place in enumerate(places) if place.in_cell), None)
    below = places[own or 0 :]
    # functions of PyTorch that are timed are called through ours
    return [place for place in below if place is below[-1] or not _is_ours(place.file)]


def _is_ours(file: str) -> bool:
    return f"{os.sep}IPython{os.sep}" in file or file.startswith(_OUR_FOLDER)


_OUR_FOLDER = str(Path(__file__).parent)
_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen")


def _chosen(places: list[_Place], most: int) -> list[int]:
    """Return the numbers of the frames to show: both ends, then the user's own."""
    count = len(places)
    if count <= most:
        return list(range(count))
    ends = max(1, most // 5)
    chosen = {0, count - 1, *range(ends), *range(count - ends, count)}
    shown = {(places[number].file, places[number].line) for number in chosen}
    for wanted in (lambda place: place.in_cell, lambda place: not place.foreign):
        for number in range(count - 1, -1, -1):  # the innermost say most
            if len(chosen) >= most:
                break
            place = places[number]
            if wanted(place) and (place.file, place.line) not in shown:
                chosen.add(number)
                shown.add((place.file, place.line))
    return sorted(chosen)


def _left_out(places: list[_Place]) -> str:
    names = list(dict.fromkeys(place.frame.f_code.co_name for place in places))
    told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    word = "frame is" if len(places) == 1 else "frames are"
    return f"[... {len(places):,} {word} left out, in {told} ...]"


def _frame(place: _Place, paint: _Painter, context: int) -> str:
    """Return a frame's heading and the source around its line."""
    code = place.frame.f_code
    lines = _source(place)
    begin = max(code.co_firstlineno, place.line - context, 1) if lines else 0
    if code.co_name == "<module>":
        begin = max(1, place.line - context)
    shown = [paint.place(place)]
    numbers = range(begin, min(place.line + context, len(lines)) + 1) if lines else range(0)
    for number, text in zip(numbers, paint.code([lines[n - 1] for n in numbers]), strict=True):
        shown.append(paint.line(number, text, number == place.line))
        if number == place.line:
            shown += _underline(lines[number - 1].rstrip(), place.columns)
    return "\n".join(shown)


def _underline(line: str, columns: tuple[int, int] | None) -> list[str]:
    """Return a line that marks the part of the line above that was running, where it is one."""
    if columns is None or len(line) > _LINE:
        return []
    begin, end = (len(line.encode()[:column].decode(errors="replace")) for column in columns)
    if line[begin:end].strip() in {"", line.strip()}:
        return []
    return [" " * (8 + begin) + "^" * (end - begin)]


def _source(place: _Place) -> list[str]:
    """Return a file's lines; none where there is no file, or where it is huge."""
    file = place.file
    if file not in linecache.cache:
        try:
            if Path(file).stat().st_size > _SOURCE_BYTES:
                return []
        except OSError:
            return []
    lines = linecache.getlines(file, place.frame.f_globals)
    return lines if place.line <= len(lines) else []


class _Painter:
    """Colours text for a terminal, as notebooks show it."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def _with(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[39m" if self._colours else text

    def heading(self, name: str) -> str:
        """Return the two lines above the frames."""
        told = "Traceback (most recent call last)"
        return f"{self._with(31, '-' * 75)}\n{self._with(31, name)}{told:>{75 - len(name)}}"

    def error(self, name: str, message: str) -> str:
        """Return the last line."""
        return f"{self._with(31, name)}: {message}" if message else self._with(31, name)

    def place(self, place: _Place) -> str:
        """Return where a frame is."""
        name = place.frame.f_code.co_name
        where = "" if name == "<module>" else f", in {self._with(36, name)}"
        if place.in_cell:
            return f"{self._with(36, 'Cell')} {self._with(32, f'line {place.line}')}{where}"
        return f"{self._with(36, 'File')} {self._with(32, f'{place.file}:{place.line}')}{where}"

    def line(self, number: int, text: str, marked: bool) -> str:
        """Return a line of source with its number."""
        label = f"{'-' * max(1, 5 - len(str(number)))}> {number}" if marked else f"{number:>7}"
        return f"{self._with(32, label)} {text}"

    def code(self, lines: list[str]) -> list[str]:
        """Return lines of source in colours, cut where they are long."""
        texts = [line.rstrip() for line in lines]
        texts = [text if len(text) <= _LINE else text[:_LINE] + " ..." for text in texts]
        if not self._colours:
            return texts
        from pygments import highlight
        from pygments.formatters import Terminal256Formatter
        from pygments.lexers import PythonLexer

        lexer = PythonLexer(stripnl=False, ensurenl=False)
        painted = str(highlight("\n".join(texts), lexer, Terminal256Formatter())).split("\n")
        return painted if len(painted) == len(texts) else texts


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _text(value: object) -> str:
    return _shortened(str(value))


def _shortened(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    half = _TEXT // 2
    return (
        f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out ...]\n{text[-half:]}"
    )


def _limited(make: Callable[[], str]) -> str:
    """Return a text that a user's code makes; where it raises or takes long, say so."""
    made: list[str] = []

    def follow() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - a user's __str__ may raise anything
            made.append(f"<its text cannot be made: {type(error).__name__}>")

    thread = threading.Thread(target=follow, name="workbench-error-text", daemon=True)
    thread.start()
    thread.join(_TEXT_S)
    return made[0] if made else f"<its text was not made within {_TEXT_S:g} s>"
