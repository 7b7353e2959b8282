"""Descriptions and slots of ranks, and parsing and formatting of rank numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex, TypeVar, cast

from workbench.errors import UsageError, shortened

Same = TypeVar("Same", bound=Hashable)
Ranks = str | Iterable[int] | None
"""A selection of ranks, such as ``"0,2-3"``; None selects a default."""

_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")


@dataclass(frozen=True)
class RankInfo:
    """One rank of a cluster.

    Attributes
    ----------
    rank
        Rank number in the ring.
    vm
        Host name of its VM.
    pid
        Process id on that VM.
    gpu
        Device on which the rank trains: a GPU's number on its VM, or ``"CPU"``.
    numa
        NUMA node to which the rank is bound, or ``"any"``.
    nic
        Network interface that its collectives use.
    state
        ``"ready"``, ``"running"`` or ``"dead"``.
    threads
        Number of PyTorch threads.
    transport
        Transport of its collectives, as the libraries report it; empty before they report it.
    """

    rank: int
    vm: str
    pid: int
    gpu: str
    numa: str
    nic: str
    state: str
    threads: int
    transport: str = ""


class Place(NamedTuple):
    """A VM's number among the hosts of its cluster, and the number of a slot on that VM."""

    vm: int
    slot: int


class Process(NamedTuple):
    """A VM's number, and a process id on that VM."""

    vm: int
    pid: int


def as_int(value: object) -> int | None:
    """Return an integer, including NumPy's, as an int; None for a bool or any other object.

    Examples
    --------
    >>> as_int(4)
    4
    >>> as_int(True) is None
    True
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # The value is a bool of NumPy, or an array.
        return None


def checked_int(value: object, name: str, minimum: int | None = None) -> int:
    """Return the value of an argument called `name` as an int.

    Raises
    ------
    UsageError
        The value is not an integer, or is less than `minimum`.

    Examples
    --------
    >>> checked_int(3, "epochs", minimum=1)
    3
    >>> checked_int("3", "epochs")
    Traceback (most recent call last):
        ...
    workbench.errors.UsageError: epochs='3': must be an integer. Write a number such as 10.
    """
    number = as_int(value)
    if number is None or (minimum is not None and number < minimum):
        kind = "a positive integer" if minimum == 1 else "an integer"
        if minimum not in {None, 1}:
            kind += f" of {minimum} or more"
        raise UsageError(
            f"{name}={shortened(repr(value), 80)}: must be {kind}. Write a number such as 10."
        )
    return number


def parse_ranks(text: str | int | Iterable[int] | None, size: int) -> tuple[int, ...]:
    """Return the selected ranks in ascending order.

    Parameters
    ----------
    text
        Ranks such as ``"0,2-3"``, a number, an iterable of numbers, or None for all ranks.
    size
        Number of ranks in the cluster.

    Raises
    ------
    UsageError
        No rank is named, or a rank is outside the cluster.

    Examples
    --------
    >>> parse_ranks("0,2-3", 8)
    (0, 2, 3)
    >>> parse_ranks([3, 1], 8)
    (1, 3)
    >>> parse_ranks(None, 2)
    (0, 1)
    """
    if text is None:
        return tuple(range(size))
    available = f"This cluster has {size}, numbered {ranks_text(range(size))}."
    chosen: list[int] = []
    for first, last in _ranges(text) if isinstance(text, str) else _numbers(text):
        outside = next((rank for rank in (first, last) if not 0 <= rank < size), None)
        if outside is not None:
            raise UsageError(f"ranks {text!r}: there is no rank {outside}. {available}")
        chosen += range(first, last + 1)
    if not chosen:
        raise UsageError(f"ranks {text!r}: no rank named. {available}")
    return tuple(sorted(set(chosen)))


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last rank of each range in a text."""
    for part in filter(None, map(str.strip, text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"ranks {text!r}: {part!r} is not a rank. Write numbers and ranges, such as 0,2-3."
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise UsageError(
                f"ranks {text!r}: the range {part} is backwards. Write it as {last}-{first}."
            )
        yield first, last


def _numbers(ranks: object) -> Iterator[tuple[int, int]]:
    """Yield each rank of an iterable, or a single rank, as a range of one rank."""
    try:
        values = iter(cast("Iterable[object]", ranks))
    except TypeError:  # `ranks` is a number, or an array without dimensions.
        values = iter((ranks,))
    for rank in values:
        number = as_int(rank)
        if number is None:
            raise UsageError(
                f"ranks {ranks!r}: {rank!r} is not a rank. Write numbers, or text such as '0,2-3'."
            )
        yield number, number


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in compact form.

    Examples
    --------
    >>> ranks_text([0, 1, 2, 5])
    '0-2,5'
    """
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def phrase(ranks: Iterable[int], singular: str = "", plural: str = "") -> str:
    """Return a phrase such as ``rank 0 is`` or ``ranks 0-1 are``.

    Parameters
    ----------
    ranks
        The ranks that the phrase names.
    singular, plural
        The words that follow a single rank, and those that follow several ranks.

    Examples
    --------
    >>> phrase([0, 1], "is slow", "are slow")
    'ranks 0-1 are slow'
    """
    ranks = list(ranks)
    words = ("rank", singular) if len(ranks) == 1 else ("ranks", plural)
    return f"{words[0]} {ranks_text(ranks)} {words[1]}".rstrip()


def capitalized(text: str) -> str:
    """Return a sentence with a capital first letter; the other letters keep their case."""
    return text[:1].upper() + text[1:]


def label(ranks: Iterable[int]) -> str:
    """Return the label of output lines: ``[rank 0]`` or ``[ranks 0-1]``.

    Examples
    --------
    >>> label([0, 1])
    '[ranks 0-1]'
    """
    return f"[{phrase(ranks)}]"


def grouped(by_rank: Mapping[int, Same]) -> list[tuple[Same, list[int]]]:
    """Return each distinct value with its ranks, ordered by the first rank.

    Examples
    --------
    >>> grouped({0: "ready", 1: "dead", 2: "ready"})
    [('ready', [0, 2]), ('dead', [1])]
    """
    groups: dict[Same, list[int]] = {}
    for rank, value in sorted(by_rank.items()):
        groups.setdefault(value, []).append(rank)
    return list(groups.items())
