"""Pauses of a VM: all of its ranks stop at once, as in a vMotion, a snapshot or a suspend.

A VM does not notice that it was stopped, but the times of its ranks show it. In one iteration,
the work of each of its ranks takes longer by the same time, in whichever phase the rank was. The
work of the ranks of other VMs does not take longer, and these ranks wait. Work is the iteration
without the waiting for communication.

These pauses are not recognized, because the times of iterations do not show the difference:

- a pause of a VM with one rank, which looks like a pause of that rank;
- a pause while one of the VM's ranks waits for communication, which looks like a pause of the
  VM's other ranks;
- a pause while all ranks of the VM load data or are in no phase, because ranks of one VM may also
  wait for a disk that they share;
- a pause during which the VM's clock stops, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.lateness import Matrix
from workbench.timings.ring_delays import RingDelays

MIN_PAUSE_US = 100_000.0
"""Shortest pause that is reported, because the scheduler of a busy VM delays for less time."""
MIN_SHARE = 0.5
"""Minimum ratio of a pause to the median iteration. The ranks of other VMs must wait for at least
this share of the pause, and their work may only take longer by less than this share."""
MIN_NOISE_RATIO = 10.0
"""Minimum ratio of a pause to the noise of the ranks' work."""
MAX_NEAR_PAUSES = 2
"""Maximum number of pauses of a VM among neighbouring iterations; more pauses are caused by
the training."""
MIN_ITERATIONS = 16
"""Minimum number of iterations that make a pause clear."""
NEIGHBOURS = 50
"""Number of neighbouring iterations on either side."""
SHARED = ("data", "other")
"""Phases during which the ranks of a VM may wait for a resource that they share."""


class Pause(NamedTuple):
    """A pause of a VM.

    Attributes
    ----------
    vm
        Host name of the VM.
    indices
        The iterations during which the VM's ranks were stopped, as ascending indices into the
        ring's iterations.
    length_us
        How long the VM's ranks were stopped: the median over these ranks.
    waited_us
        How long a rank of another VM waited for this VM.
    """

    vm: str
    indices: npt.NDArray[np.intp]
    length_us: float
    waited_us: float


def find_pauses(ring: RingDelays, vms: Mapping[int, str]) -> Iterator[Pause]:
    """Yield the pauses of VMs with several ranks; `vms` has the host name of each rank's VM."""
    names = np.array([vms.get(int(rank), "") for rank in ring.lateness.ranks])
    if "" in names:
        return
    for begin, cell in ring.cells(MIN_ITERATIONS):
        if cell.warm.sum() < MIN_ITERATIONS:
            continue
        for vm in np.unique(names):
            on_vm = names == vm
            if 1 < on_vm.sum() < len(names):
                for pause in _pauses_of_vm(cell, str(vm), on_vm):
                    yield pause._replace(indices=pause.indices + begin)


def only_rank(rank: int, vms: Mapping[int, str]) -> str:
    """Return the VM of a rank if it is the only rank there, among several VMs; else an empty text.

    Examples
    --------
    >>> only_rank(2, {0: "vm-a", 1: "vm-a", 2: "vm-b"})
    'vm-b'
    >>> only_rank(0, {0: "vm-a", 1: "vm-a", 2: "vm-b"})
    ''
    """
    names = list(vms.values())
    vm = vms.get(rank, "")
    return vm if names.count(vm) == 1 < len(set(names)) else ""


def _pauses_of_vm(cell: RingDelays, vm: str, on_vm: npt.NDArray[np.bool_]) -> Iterator[Pause]:
    """Yield the pauses of one VM in a cell; `on_vm` is a mask of its ranks."""
    rows = cell.lateness.rows
    work = (rows["iteration_ns"] - rows["exposed_ns"]) / 1e3
    excess = np.where(cell.warm[:, np.newaxis], work - np.median(work[cell.warm], axis=0), 0.0)
    work_noise = float(noise.noise(work[cell.warm]).max())
    min_length_us = max(MIN_PAUSE_US, MIN_SHARE * cell.usual_us, MIN_NOISE_RATIO * work_noise)
    pauses = [
        (indices, length_us)
        for indices, length_us in _candidates(excess, on_vm, min_length_us)
        if not _in_shared_phases(cell, indices, length_us, on_vm)
        and _waited(cell, indices, on_vm) >= MIN_SHARE * length_us
    ]
    for indices, length_us in pauses:
        nearby_pauses = [p for p, _ in pauses if abs(int(p[0] - indices[0])) <= NEIGHBOURS]
        if len(nearby_pauses) <= MAX_NEAR_PAUSES:
            yield Pause(vm, indices, length_us, _waited(cell, indices, on_vm))


def _candidates(
    excess: Matrix, on_vm: npt.NDArray[np.bool_], min_length_us: float
) -> Iterator[tuple[npt.NDArray[np.intp], float]]:
    """Yield the iterations where only the ranks of a VM take longer, all by the same time.

    The iterations are indices, followed by this time in microseconds. One rank may begin the next
    iteration before another rank does, so two successive iterations can be one pause.
    """
    longest_of_two = np.maximum(excess, np.append(excess[1:], excess[-1:], axis=0))
    shortest = longest_of_two[:, on_vm].min(axis=1)
    longest = longest_of_two[:, on_vm].max(axis=1)
    is_clear = (shortest >= np.maximum(min_length_us, noise.SIMILARITY * longest)) & (
        longest_of_two[:, ~on_vm].max(axis=1) < MIN_SHARE * shortest
    )
    end = -1
    for start in np.flatnonzero(is_clear).tolist():
        if start <= end:
            continue
        length_us = float(np.median(longest_of_two[start, on_vm]))
        two_iterations = np.arange(start, min(start + 2, len(excess)))
        indices = two_iterations[
            excess[two_iterations][:, on_vm].max(axis=1) >= MIN_SHARE * length_us
        ]
        end = int(indices[-1])
        yield indices, length_us


def _in_shared_phases(
    cell: RingDelays,
    indices: npt.NDArray[np.intp],
    length_us: float,
    on_vm: npt.NDArray[np.bool_],
) -> bool:
    """Whether each rank was stopped in a phase that may wait for a resource of the VM."""
    rows = cell.lateness.rows
    times = np.sum([rows[f"{phase}_ns"] for phase in SHARED], axis=0)[:, on_vm] / 1e3
    usual = np.median(times[cell.warm], axis=0)
    return bool(((times[indices].max(axis=0) - usual) >= MIN_SHARE * length_us).all())


def _waited(cell: RingDelays, indices: npt.NDArray[np.intp], on_vm: npt.NDArray[np.bool_]) -> float:
    """Return how long a rank of another VM waited in these iterations, or in the next one."""
    return float(cell.lateness.waited_us[indices[0] : indices[-1] + 2][:, ~on_vm].max())
