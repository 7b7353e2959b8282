"""Predict the iteration of a training on another fabric, or with other settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from workbench.advisor.measured_training import MAX_RELIABLE_ERROR, MeasuredTraining, measure
from workbench.errors import UsageError
from workbench.fabric.models import busbw_factor, ring_us, tcp_efficiency
from workbench.fabric.overlap import CommunicationModel, Simulated, Workload, simulate
from workbench.fabric.quantities import check_positive
from workbench.ranks import checked_int

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings import Timings
    from workbench.timings.run import Run

_NO_RATE = (
    "the training ran on one VM, so no link between VMs was measured. Give its rate as gbps, or "
    "keep the ranks on one VM with ranks_per_vm."
)
_MEASURED = "The measured figures are medians of the newest iterations."


@dataclass(frozen=True)
class Changes:
    """Changes to the measured training. The default values (None, 1 and False) change nothing.

    Attributes
    ----------
    gbps
        Nominal rate of a VM's link in 10^9 bits per second, with the headers of TCP or RDMA. For
        ranks of one VM, the bus bandwidth between them.
    measured_gbps
        The nominal rate of the measured link. The part of a transfer that takes longer than the
        link at this rate is processing, which another link does not change. By default, only the
        link limits transfers, and its rate follows from their times.
    ranks
        Number of ranks, in a ring.
    latency_us
        Time of one message of the ring, instead of the measured fixed time of a transfer.
    compression
        ``"fp16"`` halves the bytes of gradients, which are assumed to have 32 bits.
    fusion_threshold_bytes, cycle_time_ms
        Horovod's HOROVOD_FUSION_THRESHOLD (0: no fusion) and HOROVOD_CYCLE_TIME.
    batch_scale
        Factor of the batch size. Loading, copies, forward and backward are proportional to it.
    ranks_per_vm
        Ranks on each VM. A flat ring crosses the VM's link once in each direction.
    hierarchical
        Whether the ranks of a VM reduce among themselves first. Then only the VMs form a ring.
    vm_gbps
        Bus bandwidth between the ranks of a VM.

    Examples
    --------
    >>> print(Changes(gbps=100, compression="fp16"))
    gbps=100, compression='fp16'
    >>> print(Changes())
    no change
    """

    gbps: float | None = None
    measured_gbps: float | None = None
    ranks: int | None = None
    latency_us: float | None = None
    compression: str | None = None
    fusion_threshold_bytes: float | None = None
    cycle_time_ms: float | None = None
    batch_scale: float = 1.0
    ranks_per_vm: int | None = None
    hierarchical: bool = False
    vm_gbps: float | None = None

    def __post_init__(self) -> None:
        from_zero = ("latency_us", "fusion_threshold_bytes", "cycle_time_ms")
        for name in ("gbps", "measured_gbps", "batch_scale", "vm_gbps", *from_zero):
            value = getattr(self, name)
            is_zero = value == 0 and not isinstance(value, bool)
            if value is not None and not (name in from_zero and is_zero):
                check_positive(value, name)
                object.__setattr__(self, name, value if isinstance(value, int) else float(value))
        for name, smallest in (("ranks", 2), ("ranks_per_vm", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_int(getattr(self, name), name, smallest))
        if self.compression not in (None, "fp16"):
            raise UsageError(
                f"compression={self.compression!r}: not known. Give 'fp16', or None for none."
            )
        if self.hierarchical and self.vm_gbps is None:
            raise UsageError(
                "hierarchical=True: the bus bandwidth within a VM is not known. Give vm_gbps."
            )

    def __str__(self) -> str:
        """Return the changes as arguments of `what_if`."""
        fields = Changes.__dataclass_fields__
        changed = {
            name: value for name, value in vars(self).items() if value != fields[name].default
        }
        return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "no change"


@dataclass(frozen=True)
class Prediction:
    """A predicted iteration next to the measured one; times in microseconds.

    Attributes
    ----------
    changes
        The changes to the measured training.
    measured_us, predicted_us
        Duration of an iteration: the measured median, and the prediction.
    measured_exposed_us, predicted_exposed_us
        Time for which a rank waits for gradients: the maximum over the ranks.
    measured_transfer_us, predicted_transfer_us
        Sum of the transfers of all buffers.
    replay_error
        Relative error of the simulation of the measured iteration. Predictions are corrected for
        this error: compute in proportion, and exposed communication by the difference.
    ranks
        Number of ranks of the prediction.
    assumptions
        The assumptions of the prediction, in sentences.
    simulated
        The simulated iteration, with its buffers.
    """

    changes: Changes
    measured_us: float
    predicted_us: float
    measured_exposed_us: float
    predicted_exposed_us: float
    measured_transfer_us: float
    predicted_transfer_us: float
    replay_error: float
    ranks: int
    assumptions: tuple[str, ...]
    simulated: Simulated

    @property
    def speedup(self) -> float:
        """The measured duration divided by the predicted duration."""
        return self.measured_us / self.predicted_us

    @property
    def reliable(self) -> bool:
        """Whether the simulation reproduces the measured iteration well enough."""
        return abs(self.replay_error) <= MAX_RELIABLE_ERROR

    @property
    def exposed_share(self) -> float:
        """The predicted share of the iteration that training waits for gradients."""
        return self.predicted_exposed_us / self.predicted_us

    @property
    def remarks(self) -> tuple[str, ...]:
        """The uncertainty and the assumptions, in sentences."""
        error = f"Simulated, the measured iteration is {self.replay_error:+.1%} off"
        if not self.reliable:
            error = f"This is no prediction. {error}, which is more than {MAX_RELIABLE_ERROR:.0%}"
        return (_MEASURED, f"{error}.", *self.assumptions)

    @property
    def heading(self) -> str:
        """The heading of the new figures: predicted, or not reliable."""
        return "predicted" if self.reliable else "not reliable"

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the figures as text: name, measured, predicted."""
        pairs = (
            ("iteration", self.measured_us, self.predicted_us),
            ("exposed communication", self.measured_exposed_us, self.predicted_exposed_us),
            ("transfers", self.measured_transfer_us, self.predicted_transfer_us),
        )
        return [(name, f"{old / 1e3:,.2f} ms", f"{new / 1e3:,.2f} ms") for name, old, new in pairs]

    def __repr__(self) -> str:
        """Return the figures and the remarks as text."""
        lines = [f"{'':24}{'measured':>14}{self.heading:>14}   ({self.changes})"]
        lines += [f"{name:24}{old:>14} {new:>13}" for name, old, new in self.rows()]
        lines.append(f"{'speedup':24}{'':14}{self.speedup:>13.2f}x")
        return "\n".join([*lines, *self.remarks])

    def _repr_html_(self) -> str:
        cells = [*self.rows(), ("speedup", "", f"{self.speedup:.2f}x")]
        body = "".join(
            f'<tr><td style="text-align:left">{name}</td><td>{old}</td><td>{new}</td></tr>'
            for name, old, new in cells
        )
        head = f"<tr><th></th><th>measured</th><th>{self.heading}</th></tr>"
        notes = "<br>".join(map(escape, self.remarks))
        return f"<p>{escape(str(self.changes))}</p><table>{head}{body}</table><p>{notes}</p>"


def what_if(training: Cluster | Timings | Run, **changes: object) -> Prediction:
    """Predict the iteration of a training after some changes.

    The prediction simulates the last cell with recorded iterations; see
    `workbench.fabric.overlap`.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).
    **changes
        Any of the attributes of `Changes`.

    Raises
    ------
    UsageError
        No recorded iteration can be simulated, or a change is unknown or out of range.
    """
    measured = measure(training)
    prediction = predict(measured, **changes)
    measured.check_replay(prediction.replay_error)
    return prediction


def predict(measured: MeasuredTraining, **changes: object) -> Prediction:
    """Predict an iteration from the result of `measure`; see `what_if`."""
    if unknown := set(changes) - set(Changes.__dataclass_fields__):
        raise UsageError(
            f"what_if: no change is named {', '.join(sorted(unknown))}. Give any of "
            f"{', '.join(Changes.__dataclass_fields__)}."
        )
    change = Changes(**changes)  # type: ignore[arg-type]
    assumptions = [f"The time of a transfer is from {measured.link}."]
    model, ranks = _changed_model(measured, change, assumptions)
    work, model = _changed_work(measured, model, change, assumptions)
    replay = simulate(measured.work, measured.model)
    new = simulate(work, model)
    # The exposed time is a maximum over ranks, and may exceed the mean duration of the iteration.
    waited = min(measured.exposed_us, measured.iteration_us)
    exposed_us = max(0.0, new.exposed_us + waited - replay.exposed_us)
    compute_factor = (new.iteration_us - new.exposed_us) / (
        replay.iteration_us - replay.exposed_us or 1.0
    )
    computed_us = (measured.iteration_us - waited) * compute_factor
    return Prediction(
        change,
        measured.iteration_us,
        computed_us + exposed_us,
        waited,
        exposed_us,
        measured.transfer_us,
        new.transfer_us * (measured.transfer_us / replay.transfer_us),
        replay.iteration_us / measured.iteration_us - 1,
        ranks,
        tuple(assumptions),
        new,
    )


def _changed_model(
    measured: MeasuredTraining, change: Changes, assumptions: list[str]
) -> tuple[CommunicationModel, int]:
    """Return the model of collectives after the changes, and the number of ranks."""
    model = measured.model
    n = measured.ranks
    ranks = change.ranks or n
    per_vm = change.ranks_per_vm or min(ranks, measured.ranks_per_vm or 1)
    if ranks % per_vm and change.ranks_per_vm:
        raise UsageError(
            f"ranks_per_vm={per_vm}: {ranks} ranks are no multiple of it. Give a divisor."
        )
    vms = -(-ranks // per_vm)
    _check_link(measured, change, vms)
    link, processing = _divided(measured, change, vms, assumptions)
    ring_size = vms if change.hierarchical else ranks
    factor = busbw_factor("allreduce", n)
    busbw_ratio = busbw_factor("allreduce", ring_size) / factor
    if vms == 1 and change.vm_gbps:
        link = ring_us(1.0, ranks, change.vm_gbps)
    else:
        link *= busbw_ratio
        if change.hierarchical and change.vm_gbps:
            link += ring_us(1.0, per_vm, change.vm_gbps)
    fixed = model.fixed_us * (ring_size - 1) / (n - 1)
    if change.latency_us is not None:
        fixed = 2 * (ring_size - 1) * change.latency_us
    if ring_size != n:
        assumptions.append(
            f"Each of {ranks} ranks computes as before; no rank is late; ranks do not compete for "
            "cores."
        )
    model = replace(
        model,
        fixed_us=max(0.0, fixed),
        us_per_byte=link + processing * busbw_factor("allreduce", ranks) / factor,
        burst_bytes=model.burst_bytes / busbw_ratio if busbw_ratio else 0.0,
        negotiation_us=max(0.0, model.negotiation_us + (fixed - model.fixed_us)),
    )
    settings: dict[str, float] = {}
    if change.fusion_threshold_bytes is not None:
        settings["fusion_bytes"] = change.fusion_threshold_bytes
    if change.cycle_time_ms is not None:
        settings["cycle_us"] = change.cycle_time_ms * 1e3
    if settings and not measured.fuses:
        raise UsageError(
            "fusion_threshold_bytes and cycle_time_ms are Horovod's, and this training ran "
            "without Horovod. Leave them out."
        )
    return replace(model, **settings), ranks


def _check_link(measured: MeasuredTraining, change: Changes, vms: int) -> None:
    """Raise an error if ranks would communicate over a link that was not measured."""
    if vms > 1 and measured.one_vm and not change.gbps:
        raise UsageError(f"{change}: {_NO_RATE}")
    if vms == 1 and not measured.one_vm and change.vm_gbps is None:
        raise UsageError(
            "All ranks would be on one VM, between whose ranks no rate was measured. Give vm_gbps."
        )


def _divided(
    measured: MeasuredTraining, change: Changes, vms: int, assumptions: list[str]
) -> tuple[float, float]:
    """Return the us of a byte on the link at the new rate, and the us of processing a byte."""
    per_byte = measured.model.us_per_byte
    payload = measured.payload
    rate = link_gbps(measured)
    link = per_byte
    if change.measured_gbps:
        rate = change.measured_gbps
        link = min(per_byte, ring_us(1.0, measured.ranks, rate * payload))
    elif change.gbps:
        assumptions.append(
            f"The link limits the measured transfers, as one of {rate:.2f} Gbit/s would "
            f"({rate * payload:.2f} Gbit/s bus bandwidth)."
        )
    if not change.gbps:
        return link, per_byte - link
    new_payload = tcp_efficiency() if measured.one_vm and vms > 1 else payload
    return link * (rate * payload) / (change.gbps * new_payload), per_byte - link


def _changed_work(
    measured: MeasuredTraining, model: CommunicationModel, change: Changes, assumptions: list[str]
) -> tuple[Workload, CommunicationModel]:
    """Return the work and the model after changes of batch and compression."""
    work = measured.work
    if change.batch_scale != 1:
        factor = 1 + (change.batch_scale - 1) * measured.scaled
        ready = tuple(us * factor for us in work.ready_us)
        work = replace(work, ready_us=ready, compute_us=work.compute_us * factor)
        assumptions.append("Loading, copies, forward and backward are proportional to the batch.")
    if change.compression:
        # Each gradient is read and written once more before it is submitted, and after the wait.
        copy = model.copy_us_per_byte / 2
        spent = 0.0
        ready_us = []
        for time_us, size in zip(work.ready_us, work.sizes_bytes, strict=True):
            spent += copy * size
            ready_us.append(time_us + spent)
        sizes = tuple(size / 2 for size in work.sizes_bytes)
        work = Workload(tuple(ready_us), sizes, work.compute_us + spent, work.tail_us + spent)
        assumptions.append(
            "Gradients have 32 bits; converting one takes as long as Horovod's copy of it, and "
            "adding numbers of 16 bits as long as adding those of 32 bits, byte for byte."
        )
    return work, model


def link_gbps(measured: MeasuredTraining) -> float:
    """Return the rate of a link that would limit the measured transfers, with its headers."""
    return ring_us(1.0, measured.ranks, 1.0) / measured.model.us_per_byte / measured.payload
