"""Descriptions and places of ranks, and parsing and printing of rank numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex, TypeVar, cast

from workbench.errors import UsageError, shortened

Same = TypeVar("Same", bound=Hashable)
Ranks = str | Iterable[int] | None
"""Some ranks, such as ``"0,2-3"``; None for a default."""

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
        Device that it trains on: a GPU's number on its VM, or ``"CPU"``.
    numa
        NUMA node to which it is bound, or ``"any"``.
    nic
        Network interface that its collectives use.
    state
        ``"ready"``, ``"running"`` or ``"dead"``.
    threads
        Number of PyTorch threads.
    transport
        How its collectives are carried, as the libraries report it; empty before it is known.
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
    """A VM's number among the hosts of its cluster, and a slot there."""

    vm: int
    slot: int


class Process(NamedTuple):
    """A VM's number, and a process id there."""

    vm: int
    pid: int


def as_int(value: object) -> int | None:
    """Return an integer, of NumPy too, as an int; None for a bool or any other object."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # NumPy's bool, or an array
        return None


def checked_int(value: object, name: str, least: int | None = None) -> int:
    """Return an argument `name` as an int.

    Raises
    ------
    UsageError
        It is not an integer, or below `least`.
    """
    number = as_int(value)
    if number is None or (least is not None and number < least):
        kind = "a positive integer" if least == 1 else "an integer"
        if least not in {None, 1}:
            kind += f" of {least} or more"
        raise UsageError(
            f"{name}={shortened(repr(value), 80)}: must be {kind}. Write a number such as 10."
        )
    return number


def parse_ranks(text: str | int | Iterable[int] | None, size: int) -> tuple[int, ...]:
    """Return the ranks that `text` names, in order.

    Parameters
    ----------
    text
        Ranks such as ``"0,2-3"``, a number, several numbers, or None for all.
    size
        Number of ranks in the cluster.

    Raises
    ------
    UsageError
        It names no rank, or a rank outside the cluster.
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
    for item in filter(None, map(str.strip, text.split(","))):
        found = _RANGE.fullmatch(item)
        if found is None:
            raise UsageError(
                f"ranks {text!r}: {item!r} is not a rank. Write numbers and ranges, such as 0,2-3."
            )
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise UsageError(
                f"ranks {text!r}: the range {item} is backwards. Write it as {last}-{first}."
            )
        yield first, last


def _numbers(ranks: object) -> Iterator[tuple[int, int]]:
    """Yield each rank, of several or of one, as a range."""
    try:
        several = iter(cast("Iterable[object]", ranks))
    except TypeError:  # one number, or an array without dimensions
        several = iter((ranks,))
    for rank in several:
        number = as_int(rank)
        if number is None:
            raise UsageError(
                f"ranks {ranks!r}: {rank!r} is not a rank. Write numbers, or text such as '0,2-3'."
            )
        yield number, number


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in compact form: ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def phrase(ranks: Iterable[int], one: str = "", several: str = "") -> str:
    """Return ranks with a verb: ``rank 0 is`` or ``ranks 0-1 are``.

    Parameters
    ----------
    one, several
        The verb and its complement for one rank and for several; none by default.
    """
    ranks = list(ranks)
    words = ("rank", one) if len(ranks) == 1 else ("ranks", several)
    return f"{words[0]} {ranks_text(ranks)} {words[1]}".rstrip()


def capitalized(text: str) -> str:
    """Return a sentence with a capital first letter; names within it keep theirs."""
    return text[:1].upper() + text[1:]


def label(ranks: Iterable[int]) -> str:
    """Return the label of output lines: ``[rank 0]`` or ``[ranks 0-1]``."""
    return f"[{phrase(ranks)}]"


def grouped(by_rank: Mapping[int, Same]) -> list[tuple[Same, list[int]]]:
    """Return each distinct value with its ranks, ordered by the first rank."""
    groups: dict[Same, list[int]] = {}
    for rank, value in sorted(by_rank.items()):
        groups.setdefault(value, []).append(rank)
    return list(groups.items())
