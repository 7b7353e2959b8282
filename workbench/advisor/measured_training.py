"""The model of a training's iteration, from the times of its collectives."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.advisor.training import calibration_of, timings_of
from workbench.advisor.transfers import MIN_BUFFERS, TransferredBuffers, fit_transfers
from workbench.errors import UsageError
from workbench.fabric.models import rdma_efficiency, tcp_efficiency
from workbench.fabric.overlap import CYCLE_US, FUSION_BYTES, CommunicationModel, Workload
from workbench.timings.buffers import is_timed
from workbench.timings.figures import typical
from workbench.timings.store import CollectiveRecord, Rows, last_cell, peers
from workbench.wire import Layout
from workbench.wire.record import TICK_NS, TIMES

if TYPE_CHECKING:
    from workbench.fabric import FittedFabric

_log = logging.getLogger(__name__)

MAX_ITERATIONS = 64
"""Maximum number of iterations that are used: the newest ones of the cell."""
MAX_RELIABLE_ERROR = 0.1
"""Maximum relative error of a reliable simulation of the measured iteration."""
_GRADIENTS = ("optimizer", "ddp")
_MAX_DEFAULT_CYCLE = 2.5
"""Up to this multiple of Horovod's default, the cycle time is assumed to be the default."""
_MIN_SIZE_RATIO = 1.5
"""Minimum ratio of the largest to the smallest buffer for which the time of a byte is fitted."""

_MIN_NEGOTIATED_US = 20.0
"""A buffer with a shorter delay was negotiated together with the buffer before it."""

_ONE_RANK = (
    "Nothing to simulate: the training ran on 1 rank, or its process set has 1 rank, which does "
    "not communicate. Train on at least 2 ranks."
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredTraining:
    """A model of the newest iterations of a training: medians, in microseconds.

    Attributes
    ----------
    work, model
        The compute and the collectives of an iteration, and the duration of the collectives.
    ranks, ranks_per_vm
        The number of ranks, and the largest number on one VM (None if the VMs are unknown).
    payload
        Share of a link's nominal rate that is left after the headers of TCP or RDMA; 1 if all ranks
        are on one VM.
    iteration_us, exposed_us, transfer_us
        Medians over `iterations` iterations.
    scaled
        Share of `work.compute_us` that is proportional to the batch.
    fuses
        Whether collectives are fused in cycles, as Horovod does.
    link
        Where the time of a transfer comes from, as text.
    """

    work: Workload
    model: CommunicationModel
    ranks: int
    ranks_per_vm: int | None
    payload: float
    iterations: int
    iteration_us: float
    exposed_us: float
    transfer_us: float
    scaled: float
    fuses: bool
    link: str

    @property
    def one_vm(self) -> bool:
        """Whether all ranks are on one VM, so that no link between VMs was measured."""
        return self.ranks_per_vm is not None and self.ranks_per_vm >= self.ranks

    def check_replay(self, error: float) -> None:
        """Raise an error if the simulation of the measured iteration is too far off, with DDP.

        DDP does not report when the transfer of a bucket began, so the exposed time cannot be
        predicted. `error` is relative.
        """
        if not self.fuses and abs(error) > MAX_RELIABLE_ERROR:
            raise UsageError(
                "Cannot predict this DDP training: simulated, the measured iteration is "
                f"{error:+.1%} off, more than {MAX_RELIABLE_ERROR:.0%}, because DDP does not "
                "report when each bucket's transfer began. Train for more iterations on cores "
                "without other load, or with Horovod."
            )


def measure(training: Any) -> MeasuredTraining:
    """Return the model of the last cell with recorded iterations of a cluster, timings or a run.

    Raises
    ------
    UsageError
        Too little was recorded, or the training communicates in another way.
    """
    timings = timings_of(training)
    rows: Rows = timings.rows()
    if not len(rows):
        raise UsageError(
            "Nothing to simulate: no iteration was recorded. No optimizer stepped in a "
            "%%distributed cell; an iteration ends with optimizer.step()."
        )
    rows = typical(last_cell(rows))
    rows = rows[rows["iteration"] > rows["iteration"].max() - MAX_ITERATIONS]
    layout, complete = _complete_iterations(timings, rows)
    all_times = np.array([_times(records) for records in complete])
    is_gradient = np.array([by in _GRADIENTS for by in layout.by])
    _check(layout, is_gradient)
    times, early = _on_one_clock(all_times[..., is_gradient] * (TICK_NS / 1e3))
    gradient_layout = _part_of_layout(layout, is_gradient)
    rows_us = _phases(rows, complete)
    work = _workload(times, rows_us, early, gradient_layout)
    buffers = TransferredBuffers(times, gradient_layout)
    n = peers(layout, int(rows["world_size"].max()))[1]
    if n < 2:
        raise UsageError(_ONE_RANK)
    fabric = calibration_of(training)
    model, link = _communication(buffers, bool(is_timed(gradient_layout).all()), n, fabric)
    busy = np.sum([rows_us[name] for name in ("data", "copy", "forward", "backward")], axis=0)
    share = float(np.median(busy.mean(axis=1))) / work.compute_us if work.compute_us > 0 else 0.0
    per_vm = _ranks_per_vm(timings)
    _log.debug("modelled %d iterations of %d ranks; transfers from %s", len(complete), n, link)
    return MeasuredTraining(
        work,
        model,
        n,
        per_vm,
        1.0 if per_vm is not None and per_vm >= n else _payload(training),
        len(complete),
        float(np.median(rows_us["iteration"].mean(axis=1))),
        float(np.median(rows_us["exposed"].max(axis=1))),
        float(np.median(buffers.transfer_sums)),
        min(1.0, share),
        model.cycle_us > 0,
        link,
    )


def _on_one_clock(times: Floats) -> tuple[Floats, Floats]:
    """Return the times since the ranks' mean start of the iteration, and how early each rank began.

    All times are in us. The shape of `times` is (iterations, ranks, TIMES, collectives), and of the
    second result (iterations, ranks). The recorded times of a rank count from its own start.
    All ranks finish the last collective at about the same time, which shows how much earlier than
    the others a rank began.
    """
    last = times[:, :, -1].max(axis=2)
    early = last - last.mean(axis=1, keepdims=True)
    return times - early[:, :, None, None], early


def _workload(times: Floats, phases: dict[str, Floats], early: Floats, layout: Layout) -> Workload:
    """Return the work of an iteration: medians over iterations, each of the last rank."""
    ready = np.median(times[:, :, 0].max(axis=1), axis=0)
    finished = times[:, :, -1].max(axis=2)
    compute = _wait_begins(phases, finished, early).max(axis=1)
    tail = phases["iteration"].mean(axis=1) - np.maximum(compute, finished.max(axis=1))
    order = np.argsort(ready, kind="stable")
    return Workload(
        tuple(ready[order].tolist()),
        tuple(np.array(layout.sizes_bytes, float)[order].tolist()),
        float(np.median(compute)),
        max(0.0, float(np.median(tail))),
    )


def _complete_iterations(timings: Any, rows: Rows) -> tuple[Layout, list[list[CollectiveRecord]]]:
    """Return the most frequent layout, and the iterations in which all ranks used it."""
    first = int(rows["iteration"].min())
    last = int(rows["iteration"].max())
    by_iteration: dict[int, dict[int, CollectiveRecord]] = {}
    # Records without a row are left out, such as profiled iterations and records that just arrive.
    usable = set(zip(rows["iteration"].tolist(), rows["rank"].tolist(), strict=True))
    for record in timings.records(first, last):
        if (record.iteration, record.rank) in usable and len(record.layout.names):
            by_iteration.setdefault(record.iteration, {})[record.rank] = record
    ranks = set(rows["rank"].tolist())
    counts: Counter[tuple[str, ...]] = Counter()
    layouts = {}
    for records in by_iteration.values():
        layouts.update({record.layout.names: record.layout for record in records.values()})
        layout_names = {record.layout.names for record in records.values()}
        if set(records) == ranks and len(layout_names) == 1:
            counts[layout_names.pop()] += 1
    if int(rows["world_size"].max()) < 2:
        raise UsageError(_ONE_RANK)
    if not counts:
        raise UsageError(
            "Nothing to simulate: no iteration has the times of the collectives of all ranks. "
            "Train with Horovod's DistributedOptimizer or DDP in a recorded cell."
        )
    names = counts.most_common(1)[0][0]
    complete = [
        [records[rank] for rank in sorted(ranks)]
        for records in by_iteration.values()
        if set(records) == ranks
        and all(record.layout.names == names for record in records.values())
    ]
    return layouts[names], complete


def _check(layout: Layout, is_gradient: npt.NDArray[np.bool_]) -> None:
    """Raise an error if gradients are not reduced by allreduces in one process set."""
    kinds = {
        kind for kind, is_included in zip(layout.kinds, is_gradient, strict=True) if is_included
    }
    others = set(layout.by) - {*_GRADIENTS, "cell"}
    if not is_gradient.any() or kinds != {"allreduce"} or others:
        used = ", ".join(sorted({*layout.kinds} | others)) or "none"
        raise UsageError(
            f"Cannot simulate collectives of {used}: only allreduces of gradients by Horovod's "
            "DistributedOptimizer or DDP are simulated. Choose another cell or run."
        )


def _times(records: list[CollectiveRecord]) -> npt.NDArray[np.int64]:
    """Return the times of an iteration's collectives, of shape (ranks, TIMES, collectives)."""
    times = [[getattr(record.record, name) for name in TIMES] for record in records]
    return np.array(times, np.int64)


def _part_of_layout(layout: Layout, is_gradient: npt.NDArray[np.bool_]) -> Layout:
    """Return a layout with some of its collectives."""
    # All fields after the first one, `number`, have a value for each collective.
    columns = [
        tuple(value for value, is_included in zip(column, is_gradient, strict=True) if is_included)
        for column in list(vars(layout).values())[1:]
    ]
    return Layout(layout.number, *columns)


def _phases(rows: Rows, iterations: list[list[CollectiveRecord]]) -> dict[str, Floats]:
    """Return phases and durations of the iterations in us, as arrays of (iterations, ranks)."""
    names = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
    row_numbers = {
        (int(iteration), int(rank)): number
        for number, (iteration, rank) in enumerate(
            zip(rows["iteration"], rows["rank"], strict=True)
        )
    }
    numbers = np.array(
        [
            [row_numbers[record.iteration, record.rank] for record in records]
            for records in iterations
        ]
    )
    figures = {name: rows[f"{name}_ns"][numbers] / 1e3 for name in (*names, "iteration", "stopped")}
    figures["exposed"] = np.maximum(figures["exposed"] - figures["stopped"], 0.0)
    return figures


def _wait_begins(phases: dict[str, Floats], finished: Floats, early: Floats) -> Floats:
    """Return when training began to wait for the last collective, or when its compute ended.

    The shape is (iterations, ranks). The compute of a rank that hardly waits may have ended before
    the end of the last collective or after it.
    """
    waited = phases["exposed"] > 0.01 * phases["iteration"]
    ended = phases["iteration"] - phases["exposed"] - phases["optimizer"] - early
    return np.asarray(np.where(waited, finished - phases["exposed"], ended))


def _ranks_per_vm(timings: Any) -> int | None:
    names = timings.vm_names()
    return max(Counter(names.values()).values()) if names else None


def _payload(training: Any) -> float:
    """Return the share of a link's rate that is payload, according to the known transports."""
    # The ranks of a cluster are objects, and the ranks of a run are plain values.
    ranks = str(getattr(training, "ranks", ""))
    for network in ("RoCE", "InfiniBand"):
        if f": {network} " in ranks:
            return rdma_efficiency(link_layer=network)
    return tcp_efficiency()


def _communication(
    buffers: TransferredBuffers, timed: bool, n: int, fabric: FittedFabric | None
) -> tuple[CommunicationModel, str]:
    """Return the model of the time of collectives, and the source of this time in words."""
    fixed, slope, burst, link = _transfer(buffers, n, fabric)
    if not timed:  # DDP transfers buckets in turn, and does not report their copies
        return CommunicationModel(fixed, slope, burst, cycle_us=0.0, fusion_bytes=0.0), link
    idle = buffers.delay[buffers.idle]
    backlog = buffers.delay[~buffers.idle & (buffers.delay > _MIN_NEGOTIATED_US)]
    median_delay = float(np.median(idle)) if len(idle) else CYCLE_US / 2
    negotiation = max(0.0, median_delay - CYCLE_US / 2)
    if len(backlog) >= MIN_BUFFERS:
        negotiation = min(negotiation, float(np.median(backlog)))
    cycle = 2 * (median_delay - negotiation)
    if cycle < _MAX_DEFAULT_CYCLE * CYCLE_US:
        cycle = CYCLE_US
        negotiation = max(0.0, median_delay - CYCLE_US / 2)
    return (
        CommunicationModel(
            fixed,
            slope,
            burst,
            buffers.copy_us_per_byte(single=False),
            buffers.copy_us_per_byte(single=True),
            negotiation,
            cycle,
            buffers.split or FUSION_BYTES,
        ),
        link,
    )


def _transfer(
    buffers: TransferredBuffers, n: int, fabric: FittedFabric | None
) -> tuple[float, float, float, str]:
    """Return the us of an empty transfer and of a byte, the burst in bytes, and their source."""
    timed = (buffers.service > 0) & (buffers.size > 0)
    if not timed.any():
        raise UsageError(
            "Cannot simulate: no transfer took a time that was measured. Train with larger "
            "gradients, or on more VMs."
        )
    size = buffers.size[timed]
    service = buffers.service[timed]
    if size.max() >= _MIN_SIZE_RATIO * size.min():
        fit = fit_transfers(size, service, buffers.unused[timed])
        if fit.us_per_byte > 0:
            slope = fit.us_per_byte
            return fit.fixed_us, slope, fit.burst_us / slope, "this training's own transfers"
    # Without the time of an empty transfer, the bytes take all the time.
    whole_us_per_byte = float(np.average(service / size, weights=size))
    usable = fabric if fabric is not None and fabric.n == n and fabric.reliable else None
    if usable is not None and usable.us_per_byte < whole_us_per_byte:
        fixed = float(size.mean()) * (whole_us_per_byte - usable.us_per_byte)
        source = "the calibration and this training's transfers"
        return fixed, float(usable.us_per_byte), 0.0, source
    source = "this training's own transfers (of one size: any latency is in its bytes)"
    return 0.0, whole_us_per_byte, 0.0, source
