"""The messages with which a cell asks the user for a line of input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.wire.message import Message

PromptKind = Literal["breakpoint", "input", "password"]
"""What asks: a debugger's prompt, ``input()``, or ``getpass()``."""


@dataclass(frozen=True)
class InputRequest(Message):
    """Asks the kernel for a line of input; the cell's code waits for the `InputReply`.

    Attributes
    ----------
    cell
        Number of the cell.
    number
        Number of the request, counted by the rank; the reply repeats it.
    kind
        What asks.
    prompt
        The text before the input.
    """

    cell: int
    number: int
    kind: PromptKind
    prompt: str


@dataclass(frozen=True)
class InputReply(Message):
    """Answers an `InputRequest`.

    Attributes
    ----------
    number
        As in the request.
    text
        The line without its end; None for the end of the input, or with a `refusal`.
    refusal
        Why nobody can be asked, and what to do; empty where somebody was.
    """

    number: int
    text: str | None
    refusal: str
