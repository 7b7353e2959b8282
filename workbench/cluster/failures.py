"""What a failed cell tells: each error once, with the ranks it happened on."""

from __future__ import annotations

import re

from workbench.cluster.ranks import label
from workbench.errors import RankError, RanksFailed

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def failure(errors: dict[int, RankError], *, released: bool, stall: str = "") -> RanksFailed:
    """Return the error to raise for a cell that failed on some ranks.

    Parameters
    ----------
    stall
        Why ranks that wait were freed, where no rank had failed.
    """
    own = {rank: error for rank, error in errors.items() if not _follows(error)}
    told = own or errors
    parts = [f"{label(ranks)} {_text(error)}" for ranks, error in _grouped(told)]
    if stall and not own:  # Horovod's own error only says that it was shut down
        parts = [stall]
    freed = sorted(set(errors) - set(own))
    if own and freed:
        parts.append(f"{label(freed)} freed from a collective; variables stand")
    if released:
        parts.append(
            "Horovod is initialised anew; ranks may be a step apart: broadcast the parameters "
            "and the optimizer's state before you go on"
        )
    return RanksFailed("\n".join(parts), dict(sorted(told.items())))


def _text(error: RankError) -> str:
    """Return the error's message, and its traceback unless that is the same line."""
    message = f"{error.name}: {error.message}"
    if _COLOURS.sub("", error.traceback).strip() == message.strip():
        return message.rstrip()
    return f"{message}\n{error.traceback}".rstrip()


def _follows(error: RankError) -> bool:
    """Whether a rank only failed because another had: Horovod raises this where a ring breaks."""
    return error.name == "HorovodInternalError"


def _grouped(errors: dict[int, RankError]) -> list[tuple[list[int], RankError]]:
    """Return errors with the ranks that share them, in the order of their first rank."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(errors):
        groups.setdefault((errors[rank].name, errors[rank].message), []).append(rank)
    return [(ranks, errors[ranks[0]]) for ranks in groups.values()]
