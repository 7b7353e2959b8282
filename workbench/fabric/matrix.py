"""Measurement of the bandwidth between each pair of VMs, and detection of slow links and VMs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric.calibration import ProgressLine, RunCell

_log = logging.getLogger(__name__)

SLOW = 0.75
"""A link is slow if its rate is less than this share of the upper quartile of all links."""
_TYPICAL_QUANTILE = 0.75
"""This quantile of the rates of all links is the usual rate."""
_REPETITIONS = 5
_MIN_BYTES = 1 << 18
_MAX_BYTES = 1 << 26

# A pair exchanges data in an all-to-all to which the other ranks contribute no data. The transfer
# therefore uses the same library and the same connections as training. The time of a small transfer
# is subtracted from the time of a large one, which removes the time of the negotiation and the
# effect of the link's buffers.
_SOURCE = """
def _workbench_matrix(steps, senders, smallest, largest, seconds, repetitions):
    slowest = lambda duration: ring.largest(duration, "workbench.matrix.slowest")
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    source = torch.zeros(largest // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    def exchange(pairs, count):
        sent = [count if (rank, other) in pairs else 0 for other in range(world_size)]
        received = [count if (other, rank) in pairs else 0 for other in range(world_size)]
        tensor = source[:sum(sent)]
        synchronize(device)
        ring.barrier()
        began = time.perf_counter()
        ring.exchange(tensor, sent, target, received)
        synchronize(device)
        return time.perf_counter() - began
    ring_pairs = {(a, b) for a, b in zip(senders, senders[1:] + senders[:1])}
    count = smallest // 4
    exchange(ring_pairs, count)
    while slowest(exchange(ring_pairs, count)) < seconds and count < largest // 4:
        count = min(2 * count, largest // 4)
    durations = []
    for number, step in enumerate(steps):
        pairs = {tuple(pair) for pair in step}
        if rank == 0:
            show(f"{number / len(steps):.0%}")
        durations.append([sorted(exchange(pairs, size) for _ in range(repetitions))
                          for size in (count // 4, count)])
    return 4 * count, durations
_workbench_matrix(
"""
_STEP_S = 0.04
"""Minimum duration of a transfer, unless the largest transfer is faster."""
_STEP_LIMIT_S = 4.0
_MIN_LIMIT_S = 300.0

_MAX_ATTEMPTS = 3
"""Maximum number of measurements of a step with repetitions that differ too much."""

Rates = dict[tuple[int, int], float | None]
"""Gbit/s by the ranks of sender and receiver."""
Cells = tuple[tuple[float | None, ...], ...]
"""Gbit/s in rows of senders and columns of receivers; None if unknown."""


@dataclass(frozen=True)
class BandwidthMatrix:
    """The bandwidth from each VM to each other VM, with the library and connections of training.

    Attributes
    ----------
    names
        The VMs; or the ranks, if all ranks are on one VM.
    alone_gbps
        Gbit/s by sender and receiver, one pair at a time. None from a VM to itself, and if the
        repetitions of a transfer differ by as much as a small and a large transfer.
    together_gbps
        Gbit/s by sender and receiver while the other VMs exchange data in pairs too.

    Examples
    --------
    >>> gbps = ((None, 9.4, 1.2), (9.4, None, 9.4), (9.4, 9.4, None))
    >>> matrix = BandwidthMatrix(("vm1", "vm2", "vm3"), gbps, gbps)
    >>> matrix.slow
    ('vm1 to vm3: 1.20 of 9.40 Gbit/s',)
    """

    names: tuple[str, ...]
    alone_gbps: Cells
    together_gbps: Cells

    @property
    def slow(self) -> tuple[str, ...]:
        """Sentences about slow VMs, slow links between other VMs, and slow concurrent pairs."""
        alone = _to_array(self.alone_gbps)
        finite = alone[np.isfinite(alone)]
        # The best rate is not used, because its two times may be nearly equal by chance.
        usual_gbps = (
            float(np.quantile(finite, _TYPICAL_QUANTILE, method="higher")) if finite.size else 0.0
        )
        sentences = list(_slow_vms_and_links(self.names, alone, usual_gbps))
        together = _to_array(self.together_gbps)
        ratio = together / alone
        share = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else 1.0
        if share < SLOW:
            sentences.append(
                f"pairs at the same time have {share:.0%} of what one pair has alone: they share "
                "a link, or the cores are busy"
            )
        return tuple(sentences)

    @property
    def unknown(self) -> str:
        """The pairs without a bandwidth in one of the matrices, with the reason; may be empty."""
        pairs = [
            f"{sender} to {receiver}"
            for row, sender in enumerate(self.names)
            for column, receiver in enumerate(self.names)
            if row != column
            and None in (self.alone_gbps[row][column], self.together_gbps[row][column])
        ]
        reason = "repeated transfers differ too much. Measure again on idle VMs"
        return f"{', '.join(pairs)}: {reason}" if pairs else ""

    def __repr__(self) -> str:
        """Return both matrices as text, one row for each sender, and slow and unknown pairs."""
        width = max(8, *(len(name) + 2 for name in self.names))
        lines = []
        for title, cells in (
            ("one pair at a time", self.alone_gbps),
            ("disjoint pairs at once", self.together_gbps),
        ):
            lines.append(f"Gbit/s from (row) to (column), {title}:")
            lines.append("".join(name.rjust(width) for name in ("", *self.names)))
            for name, row in zip(self.names, cells, strict=True):
                texts = ("\u2013" if value is None else f"{value:.2f}" for value in row)
                lines.append("".join(text.rjust(width) for text in (name, *texts)))
        lines += [f"slow: {text}" for text in self.slow]
        return "\n".join([*lines, *([f"unknown: {self.unknown}"] if self.unknown else [])])


def limit_s(count: int) -> float:
    """Return the seconds after which a measurement of the pairs of `count` VMs is interrupted."""
    return _MIN_LIMIT_S + _STEP_LIMIT_S * count * (count + 1)


def measure(run: RunCell, ends: Mapping[str, int]) -> BandwidthMatrix:
    """Measure each pair of VMs in both directions, alone and at the same time as other pairs.

    Parameters
    ----------
    run
        Runs the measurement on all ranks.
    ends
        One rank of each VM, by the name of the VM.

    Raises
    ------
    UsageError
        There is only one VM.
    """
    names = tuple(ends)
    ranks = list(ends.values())
    if len(ranks) < 2:
        raise UsageError(
            "Cannot measure pairs on 1 rank: a transfer takes 2. Start a cluster of more."
        )
    alone = [[(a, b)] for a in ranks for b in ranks if a != b]
    together = list(_matchings(ranks))
    steps = alone + together
    gbps: list[Rates] = [dict.fromkeys(pairs) for pairs in steps]
    for attempt in range(_MAX_ATTEMPTS):
        noisy = [number for number, rates in enumerate(gbps) if None in rates.values()]
        if not noisy:
            break
        _log.info(
            "measuring pairs of %d VMs: attempt %d of %d, %d of %d steps",
            len(ranks), attempt + 1, _MAX_ATTEMPTS, len(noisy), len(steps),
        )  # fmt: skip
        noisy_steps = [steps[number] for number in noisy]
        arguments = (noisy_steps, ranks, _MIN_BYTES, _MAX_BYTES, _STEP_S, _REPETITIONS)
        source = f"{_SOURCE}{', '.join(map(repr, arguments))})"
        with ProgressLine("measuring pairs") as progress:
            values = run(source, progress.show)
        for number, rates in zip(noisy, _rates(noisy_steps, values), strict=True):
            gbps[number] |= {pair: rate for pair, rate in rates.items() if rate is not None}
    index = {rank: number for number, rank in enumerate(ranks)}
    return BandwidthMatrix(
        names, _cells(gbps[: len(alone)], index), _cells(gbps[len(alone) :], index)
    )


def _matchings(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield the rounds of a round-robin: disjoint pairs, in each of the two directions.

    Together, the rounds contain each pair in each direction once.

    Examples
    --------
    >>> list(_matchings([0, 1]))
    [[(0, 1)], [(1, 0)]]
    """
    circle: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = [(a, b) for a, b in opposite if a is not None and b is not None]
        yield pairs
        yield [(b, a) for a, b in pairs]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _rates(steps: list[list[tuple[int, int]]], values: Mapping[int, Any]) -> list[Rates]:
    """Return Gbit/s by pair for each step, from the slower of the pair's two ranks.

    `values` has, by rank, a size in bytes and the durations of each step: for a quarter of the size
    and for the whole size, the seconds of all repetitions in ascending order. A rate is None if the
    two shortest times of one size differ by as much as the times of the two sizes.
    """
    size = next(iter(values.values()))[0]
    step_rates = []
    for number, pairs in enumerate(steps):
        rates: Rates = {}
        for pair in pairs:
            small, large = (max(values[rank][1][number][part] for rank in pair) for part in (0, 1))
            noise = max(times[1] - times[0] for times in (small, large))
            difference = large[0] - small[0]
            # The small transfer has a quarter of the bytes of the large one.
            rates[pair] = 0.75 * size * 8e-9 / difference if difference > noise else None
        step_rates.append(rates)
    return step_rates


def _cells(step_rates: list[Rates], index: Mapping[int, int]) -> Cells:
    """Return the rates as a matrix; `index` gives the row and the column of each rank."""
    cells: list[list[float | None]] = [[None] * len(index) for _ in index]
    for rates in step_rates:
        for (sender, receiver), gbps in rates.items():
            cells[index[sender]][index[receiver]] = gbps
    return tuple(map(tuple, cells))


def _to_array(cells: Cells) -> np.ndarray:
    return np.array([[math.nan if gbps is None else gbps for gbps in row] for row in cells])


def _slow_vms_and_links(
    names: tuple[str, ...], gbps: np.ndarray, usual_gbps: float
) -> Iterator[str]:
    """Yield a sentence for each slow VM, then for each slow link between other VMs."""
    slow = gbps < SLOW * usual_gbps
    others = len(names) - 1
    slow_vms: set[int] = set()
    for vm, name in enumerate(names):
        rates = {"sends to": gbps[vm], "receives from": gbps[:, vm]}
        slow_directions = [
            direction
            for direction, cells in rates.items()
            if (cells < SLOW * usual_gbps).sum() == others
        ]
        if others > 1 and slow_directions:
            slow_vms.add(vm)
            rate = np.nanmedian(np.concatenate([rates[direction] for direction in slow_directions]))
            verbs = " and ".join(slow_directions)
            yield f"{name} {verbs} all others slowly: {rate:.2f} of {usual_gbps:.2f} Gbit/s"
    for sender, receiver in zip(*np.nonzero(slow), strict=True):
        if sender not in slow_vms and receiver not in slow_vms:
            rate = gbps[sender, receiver]
            yield f"{names[sender]} to {names[receiver]}: {rate:.2f} of {usual_gbps:.2f} Gbit/s"
