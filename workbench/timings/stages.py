"""The stages of pipelines, from the messages between ranks, and how long each is idle.

A rank sends its outputs to the next stage, and later receives their gradients from it. So of two
neighbours, the earlier stage sends first in an iteration. The stages are known if these
neighbours form a chain; or a ring in which only one rank sends before it receives, as each rank
has several stages in an interleaved schedule. Otherwise nothing is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.ranks import phrase
from workbench.timings.collective_records import CollectiveRecord
from workbench.timings.figures import typical
from workbench.timings.groups import group_names
from workbench.timings.source import TimingsSource
from workbench.timings.store import Rows
from workbench.wire import Flag

if TYPE_CHECKING:
    import pandas as pd

MAX_RECORDS = 512
"""Most records, the newest ones, in which stages are searched."""
NEARLY_ALL = 0.9
"""Share of the iterations in which the earlier of two stages must have sent first."""
KINDS = frozenset({"send", "recv"})
_SCHEDULE = "pipeline"
"""What has sent the messages of torch.distributed.pipelining. In the first iteration, a schedule
also sends the shapes of the outputs, which are no microbatch."""
COLUMNS = (
    *("iteration", "rank", "group", "stage", "stages", "microbatches"),
    *("ideal_share", "iteration_us", "idle_us", "idle_share"),
)
"""Columns of `table`."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks that pass each other the outputs and gradients of a model's stages.

    Attributes
    ----------
    group
        Name of their process group; empty for all ranks.
    ranks
        In the order of the stages.
    microbatches
        Per iteration, if each is passed on as one message; 0 if the ranks pass on different
        numbers of messages.
    chunks
        How many stages each rank has: more than one in an interleaved schedule. 0 if unknown.
    """

    group: str
    ranks: tuple[int, ...]
    microbatches: int
    chunks: int

    @property
    def ideal_share(self) -> float:
        """The share of time in which stages are idle if all are equally fast; NaN if unknown."""
        turns, others = self.microbatches * self.chunks, len(self.ranks) - 1
        return others / (turns + others) if turns else float("nan")


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of some iterations, and why other ranks with messages have no stage."""

    found: tuple[Pipeline, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class StageFigures:
    """One stage: means over warm iterations in microseconds.

    Attributes
    ----------
    pipeline, stage, rank
        Its pipeline, its position there from 0, and its rank.
    iteration_us, idle_us
        Duration of an iteration, and for how long the stage waited for messages.
    busy_us
        Forward and backward, with copies and collectives that they wait for.
    """

    pipeline: Pipeline
    stage: int
    rank: int
    iteration_us: float
    idle_us: float
    busy_us: float


class _Messages(NamedTuple):
    """The messages between a rank and another in one iteration, and whether a send was first."""

    sends: int
    receives: int
    sends_first: bool


class _Group:
    """The messages of one process group: of each iteration, by rank and the other rank.

    Attributes
    ----------
    starts
        Of each rank, whether its first message was a send.
    unknown_peers
        Whether there are messages whose other rank is not known.
    """

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], list[_Messages]] = {}
        self.starts: dict[int, list[bool]] = {}
        self.unknown_peers = False

    def add(self, rank: int, messages: dict[int, list[tuple[int, bool]]]) -> None:
        """Add those of an iteration: by peer, when each was submitted, and whether it is a send."""
        for peer, own in messages.items():
            sends = sum(is_send for _, is_send in own)
            found = _Messages(sends, len(own) - sends, min(own)[1])
            self.pairs.setdefault((rank, peer), []).append(found)
        first = min(one for own in messages.values() for one in own)
        self.starts.setdefault(rank, []).append(first[1])

    def components(self) -> list[set[int]]:
        """Return the ranks in sets that exchange messages only among themselves."""
        sets: list[set[int]] = []
        for pair in self.pairs:
            joined = set(pair).union(*(one for one in sets if one & set(pair)))
            sets = [one for one in sets if not one & joined] + [joined]
        return sets


def find(records: Iterable[CollectiveRecord]) -> Pipelines:
    """Return the pipelines in the newest of some records."""
    chosen = [one for one in records if one.iteration >= 0 and KINDS & set(one.layout.kinds)]
    chosen = chosen[-MAX_RECORDS:]
    chosen = [one for one in chosen if not one.flags & Flag.LEFT_OUT] or chosen
    names = group_names(chosen)
    found: list[Pipeline] = []
    unknown: list[str] = []
    for number, group in _groups(chosen).items():
        for ranks in group.components():
            try:
                found.append(_pipeline(names.get(number, ""), group, ranks))
            except _NoChain as why:
                unknown.append(f"The stages of {phrase(ranks)} are not known: {why}.")
    return Pipelines(tuple(sorted(found, key=lambda one: one.ranks)), tuple(unknown))


def _groups(records: Iterable[CollectiveRecord]) -> dict[int, _Group]:
    groups: dict[int, _Group] = {}
    for one in records:
        messages: dict[int, dict[int, list[tuple[int, bool]]]] = {}
        layout, times = one.layout, one.record.submitted
        columns = (layout.kinds, layout.process_sets, layout.peers, times, layout.by)
        scheduled = _SCHEDULE in layout.by
        for kind, number, peer, submitted, by in zip(*columns, strict=True):
            if scheduled and by != _SCHEDULE:
                continue
            if kind in KINDS and peer < 0:
                groups.setdefault(number, _Group()).unknown_peers = True
            elif kind in KINDS:
                own = messages.setdefault(number, {}).setdefault(peer, [])
                own.append((submitted, kind == "send"))
        for number, found in messages.items():
            groups.setdefault(number, _Group()).add(one.rank, found)
    return groups


class _NoChain(Exception):
    """Why ranks that exchange messages have no stages."""


def _pipeline(name: str, group: _Group, ranks: set[int]) -> Pipeline:
    """Return the pipeline of ranks that exchange messages."""
    if group.unknown_peers:
        raise _NoChain("some messages are received from any rank, or go to several at once")
    later: dict[int, int] = {}
    for rank, peer in group.pairs:
        if rank not in ranks or not _is_earlier(group, rank, peer):
            continue
        if rank in later or peer in later.values():
            raise _NoChain(f"rank {rank if rank in later else peer} has more than two neighbours")
        later[rank] = peer
    first = ranks - set(later.values())
    ring = not first
    if ring:
        first = {rank for rank in ranks if _mostly(group.starts[rank])}
    if len(first) != 1:
        raise _NoChain("their messages go round in a ring")
    order = [first.pop()]
    while len(order) < len(ranks):
        order.append(later[order[-1]])
    forward = {_count(group, rank, later[rank]) for rank in order[:-1]}
    microbatches, chunks = forward.pop() if len(forward) == 1 else 0, 1
    if ring and microbatches:  # outputs of the last rank go to the first one, except the last stage
        total, again = microbatches, _count(group, order[-1], order[0])
        microbatches = max(0, total - again) if again else 0
        whole = microbatches and total % microbatches == 0
        microbatches, chunks = (microbatches, total // microbatches) if whole else (0, 0)
    return Pipeline(name, tuple(order), microbatches, chunks if microbatches else 0)


def _is_earlier(group: _Group, rank: int, peer: int) -> bool:
    """Whether a rank has the stage before that of another."""
    own, its = group.pairs[rank, peer], group.pairs.get((peer, rank))
    if its is None:
        raise _NoChain(f"the messages of rank {peer} were not recorded")
    if not all(one.sends and one.receives for one in (*own, *its)):
        raise _NoChain(f"between ranks {rank} and {peer} they go only one way")
    earlier, later = (_mostly([one.sends_first for one in turns]) for turns in (own, its))
    if earlier is None or later is None or earlier == later:
        raise _NoChain(f"between ranks {rank} and {peer} neither always sends first")
    return earlier


def _mostly(values: list[bool]) -> bool | None:
    """Return the value of nearly all, or None."""
    share = sum(values) / len(values)
    return share >= NEARLY_ALL if not 1 - NEARLY_ALL < share < NEARLY_ALL else None


def _count(group: _Group, rank: int, peer: int) -> int:
    """Return how many messages a rank sends to another in each iteration; 0 if that differs."""
    counts = {one.sends for one in group.pairs[rank, peer]}
    counts |= {one.receives for one in group.pairs[peer, rank]}
    return counts.pop() if len(counts) == 1 else 0


def newest(timings: TimingsSource, rows: Rows) -> tuple[Pipelines, list[StageFigures]]:
    """Return the pipelines and stages in the newest cell of some rows that has messages."""
    cells = rows["cell"][rows["messages_ns"] > 0]
    if not len(cells):
        return Pipelines((), ()), []
    rows = rows[rows["cell"] == cells.max()]
    first, last = int(rows["iteration"].min()), int(rows["iteration"].max())
    pipelines = find(timings.records(first, last))
    return pipelines, figures(rows, pipelines.found)


def figures(rows: Rows, pipelines: Iterable[Pipeline]) -> list[StageFigures]:
    """Return the stages of pipelines, in their order, with the means of some rows."""
    rows = typical(rows)
    found = []
    for pipeline in pipelines:
        for stage, rank in enumerate(pipeline.ranks):
            own = rows[rows["rank"] == rank]
            if len(own):
                busy = own["forward_ns"] + own["backward_ns"] + own["copy_ns"] + own["exposed_ns"]
                means = (own["iteration_ns"], own["messages_ns"], busy - own["messages_ns"])
                us = [float(np.mean(values)) / 1e3 for values in means]
                found.append(StageFigures(pipeline, stage, rank, *us))
    return found


def table(rows: Rows, records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """Return one row per iteration and rank that sends or receives; see `TimingsQueries.stages`."""
    import pandas as pd

    by_cell: dict[int, list[CollectiveRecord]] = {}
    for one in records:
        by_cell.setdefault(one.record.cell, []).append(one)
    parts = []
    for cell, own in by_cell.items():
        pipelines = find(own)
        in_one = Counter(rank for each in pipelines.found for rank in each.ranks)
        of_rank = {r: each for each in pipelines.found for r in each.ranks if in_one[r] == 1}
        with_messages = {each.rank for each in own if KINDS & set(each.layout.kinds)}
        chosen = rows[(rows["cell"] == cell) & np.isin(rows["rank"], sorted(with_messages))]
        for row in chosen:
            rank = int(row["rank"])
            known: tuple[Any, ...] = ("", None, None, None, float("nan"))
            if rank in of_rank:
                its = of_rank[rank]
                place = its.ranks.index(rank), len(its.ranks)
                known = (its.group, *place, its.microbatches or None, its.ideal_share)
            idle, iteration = row["messages_ns"] / 1e3, row["iteration_ns"] / 1e3
            share = idle / iteration if iteration else float("nan")
            parts.append((row["iteration"], rank, *known, iteration, idle, share))
    found = pd.DataFrame(parts, columns=COLUMNS)
    whole = ["stage", "stages", "microbatches"]
    found[whole] = found[whole].astype("Int64")
    return found.sort_values(["iteration", "rank"], ignore_index=True)
