"""Ranks: who they are, and how a user names some of them."""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import SupportsIndex, TypeVar

from workbench.errors import UsageError

Same = TypeVar("Same", bound=Hashable)

_PART = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")


@dataclass(frozen=True)
class RankInfo:
    """One rank of a cluster.

    Attributes
    ----------
    rank
        Its number in the ring.
    vm
        Host name of its VM.
    pid
        Process id on that VM.
    gpu
        What it trains on: a GPU's number on its VM, or ``"CPU"``.
    numa
        NUMA node of its cores and memory, or ``"any"``.
    nic
        Network interface of its collectives.
    state
        ``"ready"``, ``"running"`` or ``"dead"``.
    threads
        Threads that PyTorch uses in it.
    """

    rank: int
    vm: str
    pid: int
    gpu: str
    numa: str
    nic: str
    state: str
    threads: int


def parse_ranks(text: str | int | Iterable[int] | None, size: int) -> tuple[int, ...]:
    """Return the ranks that `text` names, in order.

    Parameters
    ----------
    text
        Such as ``"0,2-3"``, a number, numbers, or None for all.
    size
        Ranks in the cluster.

    Raises
    ------
    UsageError
        It names no rank, or one that the cluster does not have.
    """
    if text is None:
        return tuple(range(size))
    there = f"This cluster has {size}, numbered {ranks_text(range(size))}."
    chosen: list[int] = []
    for first, last in _ranges(text) if isinstance(text, str) else _numbers(text):
        outside = next((rank for rank in (first, last) if not 0 <= rank < size), None)
        if outside is not None:
            raise UsageError(f"ranks {text!r}: there is no rank {outside}. {there}")
        chosen += range(first, last + 1)
    if not chosen:
        raise UsageError(f"ranks {text!r}: no rank named. {there}")
    return tuple(sorted(set(chosen)))


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last rank of each part."""
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PART.fullmatch(part)
        if found is None:
            raise UsageError(
                f"ranks {text!r}: {part!r} is not a rank. Write numbers and ranges, such as 0,2-3."
            )
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise UsageError(
                f"ranks {text!r}: the range {part} is backwards. Write it as {last}-{first}."
            )
        yield first, last


def _numbers(ranks: object) -> Iterator[tuple[int, int]]:
    """Yield each rank of several, or the one given, as a range."""
    for rank in ranks if isinstance(ranks, Iterable) else (ranks,):
        number = operator.index(rank) if isinstance(rank, SupportsIndex) else None
        if number is None or isinstance(rank, bool):
            raise UsageError(
                f"ranks {ranks!r}: {rank!r} is not a rank. Write numbers, or text such as '0,2-3'."
            )
        yield number, number


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def phrase(ranks: Iterable[int], one: str = "", several: str = "") -> str:
    """Return ranks as the subject of a sentence: ``rank 0 is`` or ``ranks 0-1 are``.

    Parameters
    ----------
    one, several
        The verb, and what follows it, for one rank and for several; none by default.
    """
    ranks = list(ranks)
    words = ("rank", one) if len(ranks) == 1 else ("ranks", several)
    return f"{words[0]} {ranks_text(ranks)} {words[1]}".rstrip()


def label(ranks: Iterable[int]) -> str:
    """Return the mark of an output: ``[rank 0]`` or ``[ranks 0-1]``."""
    return f"[{phrase(ranks)}]"


def grouped(by_rank: Mapping[int, Same]) -> list[tuple[Same, list[int]]]:
    """Return equal values once, each with the ranks that have it, by the first of them."""
    groups: dict[Same, list[int]] = {}
    for rank, value in sorted(by_rank.items()):
        groups.setdefault(value, []).append(rank)
    return list(groups.items())
