"""Finds the stages of pipelines from the messages between ranks, and how long each stage is idle.

A rank sends the outputs of its stage to the next stage, and later receives the gradients of these
outputs from that stage. So between two neighbours, the earlier stage sends first in an iteration.
The stages are known if these neighbours form a chain. They are also known if the neighbours form a
ring and only one rank sends before it receives, because each rank has several stages in an
interleaved schedule. Otherwise the stages are unknown.
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
"""Maximum number of records, the newest ones, that are searched for stages."""
NEARLY_ALL = 0.9
"""Minimum share of the iterations where the earlier of two stages must have sent first."""
KINDS = frozenset({"send", "recv"})
"""The kinds of collectives that are messages between two ranks."""
_SCHEDULE = "pipeline"
"""The sender (`Layout.by`) of the messages of torch.distributed.pipelining. In the first iteration,
a schedule also sends the shapes of the outputs, which are not a microbatch."""
COLUMNS = (
    *("iteration", "rank", "group", "stage", "stages", "microbatches"),
    *("ideal_share", "iteration_us", "idle_us", "idle_share"),
)
"""Columns of the table that `table` returns."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks that pass each other the outputs and gradients of a model's stages.

    Attributes
    ----------
    group
        Name of their process group; empty for all ranks.
    ranks
        The ranks in the order of the stages.
    microbatches
        Number of microbatches per iteration, if each is passed on as one message; 0 if the ranks
        pass on different numbers of messages.
    chunks
        Number of stages of each rank, more than one in an interleaved schedule; 0 if unknown.

    Examples
    --------
    >>> Pipeline("pp", ranks=(0, 1, 2, 3), microbatches=9, chunks=1).ideal_share
    0.25
    """

    group: str
    ranks: tuple[int, ...]
    microbatches: int
    chunks: int

    @property
    def ideal_share(self) -> float:
        """The share of time that stages are idle if all stages are equally fast; NaN if unknown."""
        turns = self.microbatches * self.chunks
        others = len(self.ranks) - 1
        return others / (turns + others) if turns else float("nan")


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of some iterations.

    Attributes
    ----------
    pipelines
        The pipelines.
    unknown
        Sentences on why other ranks with messages have no stage.
    """

    pipelines: tuple[Pipeline, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class StageFigures:
    """The mean times of one stage over typical iterations, in microseconds.

    Attributes
    ----------
    pipeline, stage, rank
        The pipeline, the position of the stage in it, from 0, and the rank of the stage.
    iteration_us, idle_us
        Duration of an iteration, and how long the stage waited for messages.
    busy_us
        Duration of forward and backward, with the copies and collectives that they wait for.
    """

    pipeline: Pipeline
    stage: int
    rank: int
    iteration_us: float
    idle_us: float
    busy_us: float


class _Messages(NamedTuple):
    """Numbers of messages that a rank sent to a peer and received from it in one iteration.

    `sends_first` is whether the rank's first message was a send.
    """

    sends: int
    receives: int
    sends_first: bool


class _GroupMessages:
    """The messages of one process group.

    Attributes
    ----------
    pairs
        A list of the messages of each iteration, by rank and peer.
    starts
        By rank, a list with a value for each iteration: whether the rank's first message was a
        send.
    unknown_peers
        Whether there are messages with an unknown peer.
    """

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], list[_Messages]] = {}
        self.starts: dict[int, list[bool]] = {}
        self.unknown_peers = False

    def add(self, rank: int, messages: dict[int, list[tuple[int, bool]]]) -> None:
        """Add the messages of one rank in one iteration.

        `messages` has the messages by peer: when each was submitted, and whether it is a send.
        """
        for peer, of_peer in messages.items():
            sends = sum(is_send for _, is_send in of_peer)
            summary = _Messages(sends, len(of_peer) - sends, min(of_peer)[1])
            self.pairs.setdefault((rank, peer), []).append(summary)
        first = min(message for of_peer in messages.values() for message in of_peer)
        self.starts.setdefault(rank, []).append(first[1])

    def components(self) -> list[set[int]]:
        """Return sets of ranks; the ranks of a set exchange messages only among themselves."""
        sets: list[set[int]] = []
        for pair in self.pairs:
            joined = set(pair).union(*(ranks for ranks in sets if ranks & set(pair)))
            sets = [ranks for ranks in sets if not ranks & joined] + [joined]
        return sets


def find(records: Iterable[CollectiveRecord]) -> Pipelines:
    """Return the pipelines in the newest records with messages."""
    selected = [
        record for record in records if record.iteration >= 0 and KINDS & set(record.layout.kinds)
    ]
    selected = selected[-MAX_RECORDS:]
    selected = [record for record in selected if not record.flags & Flag.LEFT_OUT] or selected
    names = group_names(selected)
    pipelines: list[Pipeline] = []
    unknown: list[str] = []
    for group_number, group in _groups(selected).items():
        for ranks in group.components():
            try:
                pipelines.append(_pipeline(names.get(group_number, ""), group, ranks))
            except _NoChain as reason:
                unknown.append(f"The stages of {phrase(ranks)} are not known: {reason}.")
    pipelines.sort(key=lambda pipeline: pipeline.ranks)
    return Pipelines(tuple(pipelines), tuple(unknown))


def _groups(records: Iterable[CollectiveRecord]) -> dict[int, _GroupMessages]:
    """Return the messages of each process group, by the number of the group."""
    groups: dict[int, _GroupMessages] = {}
    for record in records:
        messages: dict[int, dict[int, list[tuple[int, bool]]]] = {}
        layout = record.layout
        times = record.record.submitted
        columns = (layout.kinds, layout.process_sets, layout.peers, times, layout.by)
        has_schedule = _SCHEDULE in layout.by
        for kind, group_number, peer, submitted, by in zip(*columns, strict=True):
            if has_schedule and by != _SCHEDULE:
                continue
            if kind in KINDS and peer < 0:
                groups.setdefault(group_number, _GroupMessages()).unknown_peers = True
            elif kind in KINDS:
                of_peer = messages.setdefault(group_number, {}).setdefault(peer, [])
                of_peer.append((submitted, kind == "send"))
        for group_number, by_peer in messages.items():
            groups.setdefault(group_number, _GroupMessages()).add(record.rank, by_peer)
    return groups


class _NoChain(Exception):
    """Raised if the stages of ranks that exchange messages are unknown; its text is the reason."""


def _pipeline(name: str, group: _GroupMessages, ranks: set[int]) -> Pipeline:
    """Return the pipeline of ranks that exchange messages, or raise `_NoChain`."""
    if group.unknown_peers:
        raise _NoChain("some messages are received from any rank, or go to several at once")
    next_rank: dict[int, int] = {}
    for rank, peer in group.pairs:
        if rank not in ranks or not _is_earlier(group, rank, peer):
            continue
        if rank in next_rank or peer in next_rank.values():
            raise _NoChain(
                f"rank {rank if rank in next_rank else peer} has more than two neighbours"
            )
        next_rank[rank] = peer
    first_ranks = ranks - set(next_rank.values())
    is_ring = not first_ranks
    if is_ring:
        first_ranks = {rank for rank in ranks if _mostly(group.starts[rank])}
    if len(first_ranks) != 1:
        raise _NoChain("their messages go round in a ring")
    order = [first_ranks.pop()]
    while len(order) < len(ranks):
        order.append(next_rank[order[-1]])
    forward_counts = {_count(group, rank, next_rank[rank]) for rank in order[:-1]}
    microbatches = forward_counts.pop() if len(forward_counts) == 1 else 0
    chunks = 1
    if is_ring and microbatches:
        # the last rank sends the outputs of all its stages but the last one to the first rank
        total = microbatches
        returned = _count(group, order[-1], order[0])
        microbatches = max(0, total - returned) if returned else 0
        if microbatches and total % microbatches == 0:
            chunks = total // microbatches
        else:
            microbatches = 0
            chunks = 0
    return Pipeline(name, tuple(order), microbatches, chunks if microbatches else 0)


def _is_earlier(group: _GroupMessages, rank: int, peer: int) -> bool:
    """Whether the stage of `rank` is before the stage of `peer`."""
    rank_messages = group.pairs[rank, peer]
    peer_messages = group.pairs.get((peer, rank))
    if peer_messages is None:
        raise _NoChain(f"the messages of rank {peer} were not recorded")
    if not all(
        messages.sends and messages.receives for messages in (*rank_messages, *peer_messages)
    ):
        raise _NoChain(f"between ranks {rank} and {peer} they go only one way")
    rank_sends_first, peer_sends_first = (
        _mostly([messages.sends_first for messages in iterations])
        for iterations in (rank_messages, peer_messages)
    )
    if rank_sends_first is None or peer_sends_first is None or rank_sends_first == peer_sends_first:
        raise _NoChain(f"between ranks {rank} and {peer} neither always sends first")
    return rank_sends_first


def _mostly(values: list[bool]) -> bool | None:
    """Return the value that nearly all values have, or None."""
    share = sum(values) / len(values)
    return share >= NEARLY_ALL if not 1 - NEARLY_ALL < share < NEARLY_ALL else None


def _count(group: _GroupMessages, rank: int, peer: int) -> int:
    """Return how many messages `rank` sends to `peer` in each iteration; 0 if the number varies."""
    counts = {messages.sends for messages in group.pairs[rank, peer]}
    counts |= {messages.receives for messages in group.pairs[peer, rank]}
    return counts.pop() if len(counts) == 1 else 0


def newest(timings: TimingsSource, rows: Rows) -> tuple[Pipelines, list[StageFigures]]:
    """Return the pipelines in the newest cell with messages, and mean times of their stages."""
    cells = rows["cell"][rows["messages_ns"] > 0]
    if not len(cells):
        return Pipelines((), ()), []
    rows = rows[rows["cell"] == cells.max()]
    first = int(rows["iteration"].min())
    last = int(rows["iteration"].max())
    result = find(timings.records(first, last))
    return result, stage_means(rows, result.pipelines)


def stage_means(rows: Rows, pipelines: Iterable[Pipeline]) -> list[StageFigures]:
    """Return the mean times of each stage over typical rows, in the order of the pipelines."""
    rows = typical(rows)
    stages = []
    for pipeline in pipelines:
        for stage, rank in enumerate(pipeline.ranks):
            rank_rows = rows[rows["rank"] == rank]
            if len(rank_rows):
                waiting = rank_rows["messages_ns"]
                busy = rank_rows["forward_ns"] + rank_rows["backward_ns"] + rank_rows["copy_ns"]
                busy = busy + rank_rows["exposed_ns"] - waiting
                durations = (rank_rows["iteration_ns"], waiting, busy)
                means_us = [float(np.mean(values)) / 1e3 for values in durations]
                stages.append(StageFigures(pipeline, stage, rank, *means_us))
    return stages


def table(rows: Rows, records: Iterable[CollectiveRecord]) -> pd.DataFrame:
    """Return one row per iteration and rank that sends or receives; see `TimingsQueries.stages`."""
    import pandas as pd

    by_cell: dict[int, list[CollectiveRecord]] = {}
    for record in records:
        by_cell.setdefault(record.record.cell, []).append(record)
    table_rows = []
    for cell, cell_records in by_cell.items():
        pipelines = find(cell_records).pipelines
        counts = Counter(rank for pipeline in pipelines for rank in pipeline.ranks)
        pipeline_of_rank = {
            rank: pipeline for pipeline in pipelines for rank in pipeline.ranks if counts[rank] == 1
        }
        ranks_with_messages = {
            record.rank for record in cell_records if KINDS & set(record.layout.kinds)
        }
        selected = rows[(rows["cell"] == cell) & np.isin(rows["rank"], sorted(ranks_with_messages))]
        for row in selected:
            rank = int(row["rank"])
            stage: tuple[Any, ...] = ("", None, None, None, float("nan"))
            if rank in pipeline_of_rank:
                pipeline = pipeline_of_rank[rank]
                stage = (
                    pipeline.group,
                    pipeline.ranks.index(rank),
                    len(pipeline.ranks),
                    pipeline.microbatches or None,
                    pipeline.ideal_share,
                )
            idle = row["messages_ns"] / 1e3
            iteration = row["iteration_ns"] / 1e3
            share = idle / iteration if iteration else float("nan")
            table_rows.append((row["iteration"], rank, *stage, iteration, idle, share))
    frame = pd.DataFrame(table_rows, columns=COLUMNS)
    integer_columns = ["stage", "stages", "microbatches"]
    frame[integer_columns] = frame[integer_columns].astype("Int64")
    return frame.sort_values(["iteration", "rank"], ignore_index=True)
