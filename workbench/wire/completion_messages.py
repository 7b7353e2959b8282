"""The messages that complete the attributes of a rank's objects."""

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
        Where the object is: the name of a variable, and names of attributes from there on.
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
        The names of the attributes; none if the object cannot be found without running code of
        its classes, or a cell runs.
    """

    number: int
    names: tuple[str, ...]
