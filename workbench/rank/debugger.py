"""Python's debugger in a rank: shows and steps through the code of cells."""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol

from workbench.rank.traceback_frames import CELL_FILE


class DebuggerPrompts(Protocol):
    """The part of `RankPrompts` that the debugger uses."""

    debugging: bool


class RankDebugger(pdb.Pdb):
    """A debugger that stops only in a cell and in the code that it calls.

    IPython compiles the statements of a cell one by one. The debugger passes over IPython's own
    code, which runs between two statements.
    """

    prompts: DebuggerPrompts

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.nosigint = True  # the stop button interrupts the cell, and starts no debugger
        self.completekey = ""
        self._continues = False

    def _cmdloop(self) -> None:
        """Ask for commands; an interrupt ends the cell instead of the command."""
        self.prompts.debugging = True
        try:
            self.cmdloop()
        finally:
            self.prompts.debugging = False

    def set_trace(self, frame: FrameType | None = None, **_: object) -> None:
        """Ask for commands at the line that a frame executes now, then step as they demand.

        Python before 3.13 stops only at the next line. A cell's last statement has no next line.

        Raises
        ------
        bdb.BdbQuit
            The command was ``quit``.
        """
        frame = frame or sys._getframe(1)
        super().set_trace(frame)  # prepares the frames that called this one
        sys.settrace(None)
        self._continues = False
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        if self.breaks or not self._continues:
            sys.settrace(self.trace_dispatch)

    def set_continue(self) -> None:
        """Continue to the next breakpoint without stepping."""
        super().set_continue()
        self._continues = True

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether to stop in a frame: never between the statements of a cell."""
        return super().stop_here(frame) and _called_by_cell(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop at a call, but not at the beginning of a cell's statement."""
        if not (_is_cell(frame) and frame.f_code.co_name == "<module>"):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: object) -> None:
        """Stop before a return, but not at the end of a cell's statement."""
        if not (_is_cell(frame) and frame.f_code.co_name == "<module>"):
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop at an exception, unless IPython's code between two statements raises it."""
        if _called_by_cell(frame):
            super().user_exception(frame, exc_info)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack from the cell's code on, and the current position in it."""
        stack, current = super().get_stack(f, t)
        first = next((index for index, (frame, _) in enumerate(stack) if _is_cell(frame)), 0)
        first = min(first, current)
        return stack[first:], current - first

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Return the text of a stack entry, with ``Cell`` instead of a cell's file name."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        frame = frame_lineno[0]
        if _is_cell(frame):
            text = text.replace(self.canonic(frame.f_code.co_filename), "Cell", 1)
        return text

    def do_interact(self, arg: str) -> bool | None:
        """Start an interactive interpreter; ``exit()`` ends it."""
        self.message("Interpreter of this rank. exit() returns to the debugger.")
        try:
            return super().do_interact(arg)
        except SystemExit:
            return None

    def do_debug(self, arg: str) -> bool | None:
        """Refuse a recursive debugger: pdb would create it as a plain `pdb.Pdb`."""
        self.error(f"debug {arg}: not supported in a rank. Set a breakpoint and call it instead.")
        return None


def rank_debugger(prompts: DebuggerPrompts) -> type[RankDebugger]:
    """Return a subclass of `RankDebugger` that asks for commands with `prompts`."""
    return type("Pdb", (RankDebugger,), {"prompts": prompts})


def break_here(debugger: type[RankDebugger]) -> Callable[..., None]:
    """Return a function that starts a debugger in the code that calls it."""

    def set_trace(*_: object, header: str | None = None, **__: object) -> None:
        instance = debugger()
        if header is not None:
            instance.message(header)
        instance.set_trace(sys._getframe(1))

    return set_trace


def _is_cell(frame: FrameType) -> bool:
    return CELL_FILE in frame.f_code.co_filename


def _called_by_cell(frame: FrameType | None) -> bool:
    while frame is not None:
        if _is_cell(frame):
            return True
        frame = frame.f_back
    return False
