"""Measures the bandwidth between each pair of VMs, and names slow links and VMs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric.calibration import ProgressLine, RunCell

SLOW = 0.75
"""A link with less than this share of the upper quartile of all links is slow."""
_TYPICAL = 0.75
_REPETITIONS = 5
_SMALLEST_BYTES = 1 << 18
_LARGEST_BYTES = 1 << 26

# A pair exchanges data in an all-to-all in which the others have none: the library that trains
# carries it, over the same connections. The time of a small transfer is subtracted from that of a
# large one, and so the time of the negotiation, and what the link's buffers hide.
_SOURCE = """
def _workbench_matrix(steps, senders, smallest, largest, seconds, repetitions):
    on, me = device, rank
    slowest = lambda taken: ring.largest(taken, "workbench.matrix.slowest")
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    data = torch.zeros(largest // 4, dtype=torch.float32, device=on)
    out = torch.zeros_like(data)
    def exchange(pairs, count):
        sent = [count if (me, other) in pairs else 0 for other in range(world_size)]
        got = [count if (other, me) in pairs else 0 for other in range(world_size)]
        tensor = data[:sum(sent)]
        finish(on)
        ring.barrier()
        began = time.perf_counter()
        ring.exchange(tensor, sent, out, got)
        finish(on)
        return time.perf_counter() - began
    everyone = {(a, b) for a, b in zip(senders, senders[1:] + senders[:1])}
    count = smallest // 4
    exchange(everyone, count)
    while slowest(exchange(everyone, count)) < seconds and count < largest // 4:
        count = min(2 * count, largest // 4)
    found = []
    for number, step in enumerate(steps):
        pairs = {tuple(pair) for pair in step}
        if rank == 0:
            show(f"{number / len(steps):.0%}")
        found.append([sorted(exchange(pairs, size) for _ in range(repetitions))
                      for size in (count // 4, count)])
    return 4 * count, found
_workbench_matrix(
"""
_STEP_S = 0.04
"""A transfer takes at least this long, unless the largest does not."""
_STEP_LIMIT_S, _LEAST_LIMIT_S = 4.0, 300.0

_ATTEMPTS = 3
"""How often a step is measured whose repetitions differ too much."""

Rates = dict[tuple[int, int], float | None]
"""Gbit/s by sender and receiver."""
Cells = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class BandwidthMatrix:
    """The bandwidth from each VM to each other one, as the training's library achieves it.

    Attributes
    ----------
    names
        The VMs; or the ranks, if all of them are on one VM.
    alone_gbps
        Gbit/s by sender and receiver, one pair at a time; None from a VM to itself, and where the
        repetitions of a transfer differ by as much as a small and a large one.
    together_gbps
        The same while the other VMs exchange data in pairs of their own.
    """

    names: tuple[str, ...]
    alone_gbps: Cells
    together_gbps: Cells

    @property
    def slow(self) -> tuple[str, ...]:
        """The slow VMs, the slow links between others, and what is slow only together."""
        alone = _known(self.alone_gbps)
        known = alone[np.isfinite(alone)]
        # not the best one: its two times may be nearly equal by chance
        usual = float(np.quantile(known, _TYPICAL, method="higher")) if known.size else 0.0
        found = list(_slow(self.names, alone, usual))
        together = _known(self.together_gbps)
        ratio = together / alone
        share = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else 1.0
        if share < SLOW:
            found.append(
                f"pairs at the same time have {share:.0%} of what one pair has alone: they share "
                "a link, or the cores are busy"
            )
        return tuple(found)

    @property
    def unknown(self) -> str:
        """The pairs without a bandwidth in one of the matrices, with the reason; may be empty."""
        pairs = [
            f"{one} to {other}"
            for a, one in enumerate(self.names)
            for b, other in enumerate(self.names)
            if a != b and None in (self.alone_gbps[a][b], self.together_gbps[a][b])
        ]
        why = "repeated transfers differ too much. Measure again on idle VMs"
        return f"{', '.join(pairs)}: {why}" if pairs else ""

    def __repr__(self) -> str:
        """Return both matrices as text, a row per sender, and what is slow or unknown."""
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
    return _LEAST_LIMIT_S + _STEP_LIMIT_S * count * (count + 1)


def measure(run: RunCell, ends: Mapping[str, int]) -> BandwidthMatrix:
    """Measure each pair of VMs in both directions, alone and with other pairs at once.

    Parameters
    ----------
    ends
        One rank of each VM by the VM's name.
    """
    names, ranks = tuple(ends), list(ends.values())
    if len(ranks) < 2:
        raise UsageError(
            "Cannot measure pairs on 1 rank: a transfer takes 2. Start a cluster of more."
        )
    alone = [[(a, b)] for a in ranks for b in ranks if a != b]
    together = list(_matchings(ranks))
    steps = alone + together
    gbps: list[Rates] = [dict.fromkeys(pairs) for pairs in steps]
    for _ in range(_ATTEMPTS):
        noisy = [number for number, rates in enumerate(gbps) if None in rates.values()]
        if not noisy:
            break
        again = [steps[number] for number in noisy]
        arguments = (again, ranks, _SMALLEST_BYTES, _LARGEST_BYTES, _STEP_S, _REPETITIONS)
        source = f"{_SOURCE}{', '.join(map(repr, arguments))})"
        with ProgressLine("measuring pairs") as progress:
            values = run(source, progress.show)
        for number, rates in zip(noisy, _rates(again, values), strict=True):
            gbps[number] |= {pair: rate for pair, rate in rates.items() if rate is not None}
    place = {rank: number for number, rank in enumerate(ranks)}
    return BandwidthMatrix(
        names, _cells(gbps[: len(alone)], place), _cells(gbps[len(alone) :], place)
    )


def _matchings(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield disjoint pairs, in each direction, until each pair was in one: a round-robin."""
    circle: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        both = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        yield pairs
        yield [(b, a) for a, b in pairs]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _rates(steps: list[list[tuple[int, int]]], values: Mapping[int, Any]) -> list[Rates]:
    """Return Gbit/s by pair of each step, from the slower of the pair's two ranks.

    `values` are a size in bytes, and by step the sorted seconds of a quarter of it and of all, by
    rank. A rate is None if the shortest two times of one size differ as much as the two sizes.
    """
    size = next(iter(values.values()))[0]
    found = []
    for number, pairs in enumerate(steps):
        rates: Rates = {}
        for pair in pairs:
            small, large = (max(values[end][1][number][which] for end in pair) for which in (0, 1))
            noise = max(times[1] - times[0] for times in (small, large))
            taken = large[0] - small[0]
            rates[pair] = 0.75 * size * 8e-9 / taken if taken > noise else None
        found.append(rates)
    return found


def _cells(steps: list[Rates], place: Mapping[int, int]) -> Cells:
    cells: list[list[float | None]] = [[None] * len(place) for _ in place]
    for rates in steps:
        for (a, b), gbps in rates.items():
            cells[place[a]][place[b]] = gbps
    return tuple(map(tuple, cells))


def _known(cells: Cells) -> np.ndarray:
    return np.array([[math.nan if gbps is None else gbps for gbps in row] for row in cells])


def _slow(names: tuple[str, ...], gbps: np.ndarray, usual: float) -> Iterator[str]:
    """Yield what is slow compared with the usual rate: VMs first, then links between others."""
    slow = gbps < SLOW * usual
    others = len(names) - 1
    named: set[int] = set()
    for place, name in enumerate(names):
        cells = {"sends to": gbps[place], "receives from": gbps[:, place]}
        wrong = [what for what, own in cells.items() if (own < SLOW * usual).sum() == others]
        if others > 1 and wrong:
            named.add(place)
            rate = np.nanmedian(np.concatenate([cells[what] for what in wrong]))
            yield (
                f"{name} {' and '.join(wrong)} all others slowly: {rate:.2f} of {usual:.2f} Gbit/s"
            )
    for a, b in zip(*np.nonzero(slow), strict=True):
        if a not in named and b not in named:
            yield f"{names[a]} to {names[b]}: {gbps[a, b]:.2f} of {usual:.2f} Gbit/s"
