"""Messages with which a cell asks the user for a line of input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.wire.message import Message

PromptKind = Literal["breakpoint", "input", "password"]
"""The source of a request: a debugger's prompt, ``input()``, or ``getpass()``."""


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
        The source of the request.
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
        Why the user cannot be asked, and what to do; empty if the user was asked.
    """

    number: int
    text: str | None
    refusal: str
