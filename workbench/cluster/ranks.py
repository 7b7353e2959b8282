"""Ranks: who they are, and how a user names some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.errors import UsageError


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


def parse_ranks(text: str | Iterable[int] | None, size: int) -> tuple[int, ...]:
    """Return the ranks that `text` names, in order.

    Parameters
    ----------
    text
        Such as ``"0,2-3"``, numbers, or None for all.
    size
        Ranks in the cluster.

    Raises
    ------
    UsageError
        It names no rank, or one that the cluster does not have.
    """
    if text is None:
        return tuple(range(size))
    chosen = sorted(set(_expand(text) if isinstance(text, str) else text))
    outside = [rank for rank in chosen if not 0 <= rank < size]
    if outside or not chosen:
        named = f"no rank {ranks_text(outside)}" if outside else "no rank named"
        raise UsageError(
            f"ranks {text!r} were asked for: {named}; this cluster has {size}, "
            f"numbered {ranks_text(range(size))}"
        )
    return tuple(chosen)


def _expand(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            ranks += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise UsageError(
                f"ranks {text!r} were asked for: {part.strip()!r} is no rank; "
                "write numbers and ranges, such as 0,2-3"
            ) from None
    return ranks


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def label(ranks: Iterable[int]) -> str:
    """Return the mark of an output: ``[rank 0]`` or ``[ranks 0-1]``."""
    ranks = list(ranks)
    return f"[{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}]"
