"""Pauses of a VM: all of its ranks stop at once, as in a vMotion, a snapshot or a suspend.

A guest does not see that it was stopped, but its ranks do: in one iteration the own work of each
takes longer by the same time, in whichever phase it was, while the ranks of the other VMs do not,
and wait for it. Work is the iteration without the waiting for communication.

Not recognized are, because the times of iterations do not show the difference:

- a pause of a VM with one rank, which looks like a pause of that rank;
- a pause while one of the VM's ranks waits for communication, which looks like one of the others;
- a pause while all ranks of the VM load data or are in no phase, where ranks of one VM may also
  wait for a disk that they share;
- a pause during which the guest's clock stops, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.lateness import Matrix
from workbench.timings.ring_delays import RingDelays

LEAST_US = 100_000.0
"""Shortest pause that is reported: a busy machine's scheduler delays for less."""
SHARE = 0.5
"""...and its least share of the median iteration; the others take less than this share of the
pause longer, and wait for at least this share of it."""
NOISE = 10.0
"""...and how many times the noise of the ranks' own work it is."""
OFTEN = 2
"""More pauses of a VM than this among the neighbours have a cause in the training."""
AMONG = 16
"""Least number of iterations among which a pause is clear."""
NEIGHBOURS = 50
"""Number of neighbours on either side."""
SHARED = ("data", "other")
"""Phases in which the ranks of a VM may wait for something that they share."""


class Pause(NamedTuple):
    """A pause of a VM.

    Attributes
    ----------
    vm
        Its host name.
    places
        The iterations in which its ranks were stopped, by their places in the ring; ascending.
    length_us
        How long its ranks were stopped: their median.
    waited_us
        How long a rank of another VM waited for it.
    """

    vm: str
    places: npt.NDArray[np.intp]
    length_us: float
    waited_us: float


def find_pauses(ring: RingDelays, vms: Mapping[int, str]) -> Iterator[Pause]:
    """Yield the pauses of VMs with several ranks; `vms` are the host names of the ranks' VMs."""
    names = np.array([vms.get(int(rank), "") for rank in ring.found.ranks])
    if "" in names:
        return
    for begin, cell in ring.cells(AMONG):
        if cell.warm.sum() < AMONG:
            continue
        for vm in np.unique(names):
            own = names == vm
            if 1 < own.sum() < len(names):
                for one in _of_vm(cell, str(vm), own):
                    yield one._replace(places=one.places + begin)


def only_rank(rank: int, vms: Mapping[int, str]) -> str:
    """Return the VM of a rank that is the only one there, among several VMs; else an empty text."""
    names = list(vms.values())
    vm = vms.get(rank, "")
    return vm if names.count(vm) == 1 < len(set(names)) else ""


def _of_vm(cell: RingDelays, vm: str, own: npt.NDArray[np.bool_]) -> Iterator[Pause]:
    rows = cell.found.rows
    work = (rows["iteration_ns"] - rows["exposed_ns"]) / 1e3
    longer = np.where(cell.warm[:, np.newaxis], work - np.median(work[cell.warm], axis=0), 0.0)
    least = max(LEAST_US, SHARE * cell.usual_us, NOISE * float(noise.noise(work[cell.warm]).max()))
    pauses = [
        one
        for one in _candidates(longer, own, least)
        if not _in_shared_phases(cell, one, own) and _waited(cell, one, own) >= SHARE * one[1]
    ]
    for places, length_us in pauses:
        near = [p for p, _ in pauses if abs(int(p[0] - places[0])) <= NEIGHBOURS]
        if len(near) <= OFTEN:
            yield Pause(vm, places, length_us, _waited(cell, (places, length_us), own))


_Candidate = tuple[npt.NDArray[np.intp], float]


def _candidates(longer: Matrix, own: npt.NDArray[np.bool_], least: float) -> Iterator[_Candidate]:
    """Yield where all ranks of a VM take longer by the same time, and no other rank does.

    One rank may begin the next iteration before another: two successive ones are one pause.
    """
    most = np.maximum(longer, np.append(longer[1:], longer[-1:], axis=0))
    shortest, longest = most[:, own].min(axis=1), most[:, own].max(axis=1)
    clear = (shortest >= np.maximum(least, noise.ALIKE * longest)) & (
        most[:, ~own].max(axis=1) < SHARE * shortest
    )
    end = -1
    for place in np.flatnonzero(clear).tolist():
        if place <= end:
            continue
        length_us = float(np.median(most[place, own]))
        both = np.arange(place, min(place + 2, len(longer)))
        places = both[longer[both][:, own].max(axis=1) >= SHARE * length_us]
        end = int(places[-1])
        yield places, length_us


def _in_shared_phases(cell: RingDelays, one: _Candidate, own: npt.NDArray[np.bool_]) -> bool:
    """Whether each rank was stopped in a phase in which it may wait for what the VM shares."""
    rows, (places, length_us) = cell.found.rows, one
    times = np.sum([rows[f"{phase}_ns"] for phase in SHARED], axis=0)[:, own] / 1e3
    usual = np.median(times[cell.warm], axis=0)
    return bool(((times[places].max(axis=0) - usual) >= SHARE * length_us).all())


def _waited(cell: RingDelays, one: _Candidate, own: npt.NDArray[np.bool_]) -> float:
    """Return how long a rank of another VM waited in these iterations, or in the next one."""
    places, _ = one
    return float(cell.found.waited_us[places[0] : places[-1] + 2][:, ~own].max())
