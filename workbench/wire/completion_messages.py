"""Messages for completing the attributes of a rank's objects."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.wire.message import Message


@dataclass(frozen=True)
class AttributesRequest(Message):
    """Asks a rank between cells for the names of an object's attributes.

    Attributes
    ----------
    number
        Identifies the request; the answer repeats it.
    path
        Location of the object: the name of a variable, then names of attributes.
    """

    number: int
    path: tuple[str, ...]


@dataclass(frozen=True)
class Attributes(Message):
    """Answers an `AttributesRequest`.

    Attributes
    ----------
    number
        As in the request.
    names
        The names of the attributes; empty if the object cannot be found without running code of
        its classes, or if a cell is running.
    """

    number: int
    names: tuple[str, ...]
