"""Frames of a traceback, and their text in a notebook's colours."""

from __future__ import annotations

import sysconfig
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

CELL_FILE = "ipykernel_"
"""Contained in the file name under which ipykernel compiles each cell."""
MAX_LINE = 240
"""Maximum characters of a shown source line."""
_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen")


class TracebackFrame(NamedTuple):
    """A frame of a traceback, with the line and the instruction that raised."""

    frame: FrameType
    line: int
    instruction: int

    @property
    def file(self) -> str:
        """The file of its code."""
        return self.frame.f_code.co_filename

    @property
    def in_cell(self) -> bool:
        """Whether it is the code of a cell."""
        return CELL_FILE in self.file

    @property
    def in_library(self) -> bool:
        """Whether it is the code of a library, not of the user."""
        return self.file.startswith(_LIBRARIES) or "-packages" in self.file

    def underline(self, line: str) -> list[str]:
        """Return a line that marks the raising expression, unless it is the entire line."""
        columns = self._columns()
        if columns is None or len(line) > MAX_LINE:
            return []
        begin, end = (len(line.encode()[:column].decode(errors="replace")) for column in columns)
        if line[begin:end].strip() in {"", line.strip()}:
            return []
        return [" " * (8 + begin) + "^" * (end - begin)]

    def _columns(self) -> tuple[int, int] | None:
        """Return the columns of the raising expression; None if Python (before 3.11) has none."""
        positions = getattr(self.frame.f_code, "co_positions", None)
        if positions is None:
            return None
        position: tuple[Any, ...] = next(
            islice(positions(), self.instruction // 2, None), (None,) * 4
        )
        if None in position or position[:2] != (self.line, self.line):
            return None
        return int(position[2]), int(position[3])


class TracebackStyle:
    """Formats the parts of a traceback, with or without ANSI colours.

    Examples
    --------
    >>> TracebackStyle(colours=False).error("ValueError", "bad shape")
    'ValueError: bad shape'
    """

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def _with(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[39m" if self._colours else text

    def heading(self, name: str) -> str:
        """Return the two lines at the top of a traceback."""
        title = "Traceback (most recent call last)"
        return f"{self._with(31, '-' * 75)}\n{self._with(31, name)}{title:>{75 - len(name)}}"

    def error(self, name: str, message: str) -> str:
        """Return the last line."""
        return f"{self._with(31, name)}: {message}" if message else self._with(31, name)

    def location(self, frame: TracebackFrame) -> str:
        """Return the file, line and function of a frame."""
        name = frame.frame.f_code.co_name
        where = "" if name == "<module>" else f", in {self._with(36, name)}"
        if frame.in_cell:
            return f"{self._with(36, 'Cell')} {self._with(32, f'line {frame.line}')}{where}"
        return f"{self._with(36, 'File')} {self._with(32, f'{frame.file}:{frame.line}')}{where}"

    def line(self, number: int, text: str, marked: bool) -> str:
        """Return a line of source with its number."""
        label = f"{'-' * max(1, 5 - len(str(number)))}> {number}" if marked else f"{number:>7}"
        return f"{self._with(32, label)} {text}"

    def code(self, lines: list[str]) -> list[str]:
        """Return lines of source in colours, truncated if they are long."""
        texts = [line.rstrip() for line in lines]
        texts = [text if len(text) <= MAX_LINE else text[:MAX_LINE] + " ..." for text in texts]
        if not self._colours:
            return texts
        from pygments import highlight
        from pygments.formatters import Terminal256Formatter
        from pygments.lexers import PythonLexer

        lexer = PythonLexer(stripnl=False, ensurenl=False)
        painted = str(highlight("\n".join(texts), lexer, Terminal256Formatter())).split("\n")
        return painted if len(painted) == len(texts) else texts
