"""All that is known about a training when it is explained."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.advisor.interval import TOO_FEW, interval
from workbench.advisor.measured_training import MeasuredTraining, measure
from workbench.advisor.training import calibration_of, facts_of
from workbench.advisor.waiting import Waiting, find_waiting
from workbench.advisor.what_if import Prediction, predict
from workbench.doctor import diagnose, diagnose_all
from workbench.doctor.finding import Finding
from workbench.errors import UsageError
from workbench.ranks import RankInfo
from workbench.resources.unknown import number_or_unknown
from workbench.timings import Summary, stragglers
from workbench.timings.figures import typical
from workbench.timings.folder import RunFolder
from workbench.timings.store import Rows
from workbench.timings.summary import summarize
from workbench.timings.verdict import Cause
from workbench.wire.transport import Transport, transports_from_plain

if TYPE_CHECKING:
    from workbench.fabric import FittedFabric
    from workbench.resources import Snapshot
    from workbench.wire.sample_messages import LineSamples

MAX_OFF = 0.5
"""Relative error of the simulation of the measured iteration above which none is used."""
_CALIBRATE = "run cluster.calibrate() to measure it"
_SHOWN = 3
"""Most findings of the doctor that a cause names."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known about a training, and the causes that are made of it.

    Attributes
    ----------
    training, timings
        A cluster or a run, or only its timings.
    rows
        The iterations that are explained, at least one.
    """

    training: Any
    timings: Any
    rows: Rows
    _predicted: dict[str, Prediction | None] = field(default_factory=dict)

    # timings

    @cached_property
    def summary(self) -> Summary:
        """The key figures of the rows."""
        return summarize(self.rows)

    @cached_property
    def warm(self) -> Rows:
        """The rows without the first iteration of each cell."""
        return typical(self.rows)

    @cached_property
    def late(self) -> list[dict[str, Any]]:
        """Late ranks, slow links and pauses of VMs, as fields of `stragglers.Straggler`."""
        return stragglers.find(self.rows, self.vms)

    @cached_property
    def vms(self) -> dict[int, str]:
        """The host names of the ranks' VMs, where known."""
        names = getattr(self.timings, "vm_names", None)
        return {} if names is None else names()

    @cached_property
    def waiting(self) -> Waiting:
        """How long ranks wait for late ranks."""
        return find_waiting(self.summary, self.warm, self.late)

    @cached_property
    def samples(self) -> dict[int, LineSamples]:
        """Where ranks spent time in no phase, if a cell of the rows was sampled."""
        # a copy: another thread adds samples that arrive
        samples: dict[int, LineSamples] = dict(getattr(self.timings, "line_samples", {}))
        return {
            rank: sample
            for rank, sample in samples.items()
            if (self.rows["cell"] == sample.cell).any()
        }

    def each(self, *columns: str) -> npt.NDArray[np.float64]:
        """Return the sum of some columns in each warm iteration: the mean of the ranks, in us."""
        _, places = np.unique(self.warm["iteration"], return_inverse=True)
        spent = np.sum([self.warm[f"{column}_ns"] for column in columns], axis=0) / 1e3
        return np.asarray(np.bincount(places, spent) / np.bincount(places))

    # the simulation

    @cached_property
    def model(self) -> MeasuredTraining | None:
        """The model of the iteration, if the rows are of the newest cell and can be simulated."""
        newest = self.timings.rows()["cell"].max()
        if (self.rows["cell"] != newest).any() or not hasattr(self.timings, "records"):
            return None
        try:
            return measure(self.training)
        except UsageError:
            return None

    def predict(self, **changes: Any) -> Prediction | None:
        """Return the iteration with some changes; None if it cannot be simulated.

        The simulation of the measured iteration may be off by up to `MAX_OFF`; see `predicted`.
        """
        key = repr(sorted(changes.items()))
        if key not in self._predicted:
            found = None
            if self.model is not None:
                try:
                    found = predict(self.model, **changes)
                except UsageError:  # such as the rate between VMs, where all ranks are on one
                    found = None
            off = found is None or abs(found.replay_error) > MAX_OFF
            self._predicted[key] = None if off else found
        return self._predicted[key]

    # what the training ran on

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The facts that a run has stored; empty for a cluster."""
        return facts_of(self.training)

    @cached_property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks, as far as they are known."""
        try:
            every = getattr(self.training, "ranks", ())
            return tuple(RankInfo(**one) if isinstance(one, dict) else one for one in every)
        except TypeError:  # of a run that another version has stored
            return ()

    @cached_property
    def transports(self) -> Mapping[int, tuple[Transport, ...]]:
        """How the collectives of each rank are carried, as far as that is known."""
        found: Mapping[int, tuple[Transport, ...]] = getattr(self.training, "transports", {})
        if found:
            return found
        try:
            return transports_from_plain(self.facts.get("transports", {}))
        except (TypeError, ValueError, AttributeError):  # an edited file
            return {}

    @cached_property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """The snapshot of each VM, as far as it is known; of a stopped cluster, from its run."""
        take = getattr(self.training, "snapshot", None)
        found: Mapping[str, Snapshot] = take() if callable(take) else {}
        path = getattr(self.timings, "path", None)
        if found or path is None:
            return found
        from workbench.timings.reader import RunReader

        return RunReader(RunFolder(path)).snapshots()

    @cached_property
    def _findings(self) -> list[tuple[str, Finding]]:
        own = [(vm, one) for vm, found in self.snapshots.items() for one in diagnose(found)]
        across = diagnose_all(self.snapshots) if len(self.snapshots) > 1 else []
        every = [*own, *(("", one) for one in across)]
        on_cpus = all(info.gpu == "CPU" for info in self.ranks)
        return [
            (vm, one)
            for vm, one in every
            if one.severity != "info" and not (on_cpus and "GPU" in one.subject)
        ]

    def findings(self, rules: Collection[str], vm: str = "") -> tuple[str, str]:
        """Return what the doctor finds by some rules, as evidence and as cure; empty if nothing.

        Parameters
        ----------
        rules
            Their names.
        vm
            Only what is about this VM; of all VMs by default.
        """
        named = re.compile(rf"(?<![\w.-]){re.escape(vm)}(?![\w.-])")
        own = {
            (one.subject, one.evidence): one
            for where, one in self._findings
            if one.rule in rules and (vm in ("", where) or named.search(one.subject))
        }
        texts = []
        for subject, read in list(own)[:_SHOWN]:
            same = [where for where, one in self._findings if one.evidence == read]
            vms = ", ".join(filter(None, dict.fromkeys(same)))
            texts.append(f"{f'{vms}: ' if vms else ''}{subject}: {read}")
        cures = dict.fromkeys(one.cure.rstrip(".") for one in list(own.values())[:_SHOWN])
        return f"; the doctor finds {'; '.join(texts)}" if texts else "", "; ".join(cures)

    # the fabric

    @cached_property
    def fabric(self) -> FittedFabric | None:
        """The calibration of these ranks; None if there is none that is reliable."""
        return None if self.fabric_unknown else calibration_of(self.training)

    @cached_property
    def fabric_unknown(self) -> str:
        """Why there is no calibration to compare with; empty if there is one."""
        found, n = calibration_of(self.training), int(self.rows["world_size"].max())
        if found is None:
            return _CALIBRATE
        if found.n != n:
            return f"the calibration is of {found.n} ranks, the training of {n}; {_CALIBRATE}"
        return "" if found.reliable else found.caveat

    # causes

    def cause(
        self,
        name: str,
        evidence: str,
        change: str,
        saving_us: float,
        *,
        bound: bool = False,
        varies: npt.NDArray[np.float64] | None = None,
        error_us: float = 0.0,
        unknown: str = "",
        measure: str = "",
    ) -> Cause:
        """Return a cause, with its saving as a share of the iteration and with its interval.

        Parameters
        ----------
        varies
            The time in each iteration to which the saving is proportional; by default the time
            for which training waits for communication.
        error_us
            The error of the model from which the saving comes.
        """
        low, high = interval(
            self.each("exposed") if varies is None else varies, saving_us, error_us
        )
        why = unknown or TOO_FEW
        text = f"unknown: {why}" if math.isnan(low) else f"{low / 1e3:.2f} to {high / 1e3:.2f} ms"
        numbers = (saving_us, saving_us / self.summary.iteration_us, low, high)
        saving, share, least, most = (number_or_unknown(one, why) for one in numbers)
        return Cause(name, evidence, change, saving, share, bound, text, measure, least, most)

    def predicted(
        self, name: str, evidence: str, change: str, found: Prediction, *, measure: str = ""
    ) -> Cause:
        """Return a cause whose saving is predicted by the simulation of a change."""
        saved = found.measured_us - found.predicted_us
        return self.simulated(name, evidence, change, saved, found, measure=measure)

    def simulated(
        self,
        name: str,
        evidence: str,
        change: str,
        saving_us: float,
        same: Prediction,
        *,
        measure: str = "",
    ) -> Cause:
        """Return a cause with a simulated saving, widened by the error of the simulation.

        If the simulation of the measured iteration is off, the saving is only a bound.

        Parameters
        ----------
        same
            A prediction, of which the error of that simulation is used.
        """
        if not same.reliable:
            evidence += f"; simulated, the measured iteration is {same.replay_error:+.0%} off"
        return self.cause(
            name,
            evidence,
            change,
            min(saving_us, self.summary.exposed_us),
            bound=not same.reliable,
            error_us=abs(same.replay_error) * same.measured_us,
            measure=measure,
        )
