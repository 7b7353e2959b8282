"""What each collective took by itself: apart from queueing, and from waiting for other ranks.

Horovod runs its collectives one after another, several small ones fused into
one buffer, and tells neither when one begins nor which are fused. Both follow
from when each was submitted on every rank and between when it finished:

- All ranks finish a collective together. That aligns their clocks, as far as
  the brackets of an iteration's completions allow, and tightens the brackets.
- Collectives whose completions can have been one moment, and that were all
  submitted when the first of them could begin, are taken for one buffer: an
  inference (`_buffers`).
- A buffer begins when the last rank has submitted it and the buffer before it
  is done, and lasts until its completion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ticks = npt.NDArray[np.float64]

FUSION_BYTES = 128 << 20
"""HOROVOD_FUSION_THRESHOLD's default."""
CYCLE_US = 5_000.0
"""Horovod gathers what is submitted for a millisecond (HOROVOD_CYCLE_TIME) and negotiates."""
_FUSED = frozenset({"allreduce", "adasum", "allgather", "reducescatter"})
"""Kinds that Horovod fuses."""


@dataclass(frozen=True)
class Served:
    """Per collective of one iteration, alike on all ranks.

    Attributes
    ----------
    buffer
        Number of the buffer that it travelled in, inferred, in the order of completion.
    service
        Time that the buffer took, in microseconds.
    error
        The truth is at most so far from it, where the buffers are inferred rightly.
    """

    buffer: npt.NDArray[np.int64]
    service: Ticks
    error: Ticks


def serve(
    submitted: Ticks,
    unfinished: Ticks,
    finished: Ticks,
    sizes: npt.NDArray[np.int64],
    kinds: tuple[str, ...],
    process_sets: tuple[int, ...],
) -> Served:
    """Infer buffers and service times.

    Parameters
    ----------
    submitted, unfinished, finished
        Of shape (ranks, collectives), in microseconds of each rank's own clock:
        handed over, last seen unfinished, first seen finished.
    sizes
        Bytes of each collective.
    kinds, process_sets
        Of each collective.
    """
    count = submitted.shape[1]
    served = Served(np.zeros(count, np.int64), np.zeros(count), np.zeros(count))
    if not count:
        return served
    offsets, unsure = _align(unfinished, finished)
    handed = (submitted - offsets).max(axis=0)
    low = np.maximum((unfinished - offsets).max(axis=0), handed)
    high = (finished - offsets).min(axis=0)
    low, high = np.minimum(low, high), np.maximum(low, high)
    done = before = (-np.inf, -np.inf)
    for number, members in enumerate(_buffers(handed, low, high, sizes, kinds, process_sets)):
        begin = handed[members].max()
        done = low[members].max(), high[members].min()
        most = done[1] - max(begin, before[0])
        least = done[0] - max(begin, before[1])
        service = sum(done) / 2 - max(begin, sum(before) / 2)
        served.buffer[members] = number
        served.service[members] = max(0.0, service)
        served.error[members] = max(most - service, service - least) + unsure
        before = done
    return served


def _align(unfinished: Ticks, finished: Ticks) -> tuple[Ticks, float]:
    """Return each rank's clock less the first's, of shape (ranks, 1), and how far they may be off.

    Every completion bounds the difference by what the two ranks saw of it.
    """
    low = (unfinished - finished[0]).max(axis=1)
    high = (finished - unfinished[0]).min(axis=1)
    low[0] = high[0] = 0.0
    return ((low + high) / 2)[:, None], float(np.abs(high - low).max() / 2)


def _buffers(
    handed: Ticks,
    low: Ticks,
    high: Ticks,
    sizes: npt.NDArray[np.int64],
    kinds: tuple[str, ...],
    process_sets: tuple[int, ...],
) -> list[list[int]]:
    """Return the collectives of each buffer, in the order of their completion."""
    found: list[list[int]] = []
    begin = end = start = free = 0.0
    total = 0
    for place in np.lexsort((handed, low, high)).tolist():
        last = found[-1][-1] if found else place
        if (
            found
            and kinds[place] == kinds[last]
            and kinds[place] in _FUSED
            and process_sets[place] == process_sets[last]
            and total + sizes[place] <= FUSION_BYTES
            and handed[place] <= start + CYCLE_US
            and max(begin, low[place]) <= min(end, high[place])
        ):
            found[-1].append(place)
            begin, end = max(begin, low[place]), min(end, high[place])
            total += int(sizes[place])
        else:
            free = end if found else -np.inf
            start = max(free, handed[place])
            found.append([place])
            begin, end, total = low[place], high[place], int(sizes[place])
    return found
