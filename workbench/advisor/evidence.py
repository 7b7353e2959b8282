"""The data about a training from which its causes are found."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

MAX_REPLAY_ERROR = 0.5
"""Maximum relative error of the simulation of the measured iteration. Above it, no simulation is
used."""
_CALIBRATE = "run cluster.calibrate() to measure it"
_MAX_FINDINGS = 3
"""Maximum number of findings of the doctor that a cause names."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The data about a training, and methods that make causes from it.

    Attributes
    ----------
    training, timings
        A cluster or a run, or only its timings.
    rows
        The iterations to explain, at least one.
    """

    training: Any
    timings: Any
    rows: Rows
    _predicted: dict[str, Prediction | None] = field(default_factory=dict)
    """Predictions by their changes, as text; None if they cannot be simulated."""

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
    def stragglers(self) -> list[dict[str, Any]]:
        """Late ranks, slow links and pauses of VMs, as fields of `stragglers.Straggler`."""
        return stragglers.find(self.rows, self.vms)

    @cached_property
    def vms(self) -> dict[int, str]:
        """The host names of the ranks' VMs, where known."""
        names = getattr(self.timings, "vm_names", None)
        return {} if names is None else names()

    @cached_property
    def waiting(self) -> Waiting:
        """The time that ranks wait for late ranks."""
        return find_waiting(self.summary, self.warm, self.stragglers)

    @cached_property
    def samples(self) -> dict[int, LineSamples]:
        """The sampled lines of ranks in no phase, if a cell of the rows was sampled."""
        # Copied, because another thread adds samples that arrive.
        samples: dict[int, LineSamples] = dict(getattr(self.timings, "line_samples", {}))
        return {
            rank: sample
            for rank, sample in samples.items()
            if (self.rows["cell"] == sample.cell).any()
        }

    def per_iteration_us(self, *columns: str) -> npt.NDArray[np.float64]:
        """Return the sum of some columns in each warm iteration, as mean of the ranks, in us."""
        _, iteration_indices = np.unique(self.warm["iteration"], return_inverse=True)
        spent = np.sum([self.warm[f"{column}_ns"] for column in columns], axis=0) / 1e3
        return np.asarray(np.bincount(iteration_indices, spent) / np.bincount(iteration_indices))

    # the simulation

    @cached_property
    def model(self) -> MeasuredTraining | None:
        """The model of the iteration.

        None if the rows are from an earlier cell, or cannot be simulated.
        """
        newest = self.timings.rows()["cell"].max()
        if (self.rows["cell"] != newest).any() or not hasattr(self.timings, "records"):
            return None
        try:
            return measure(self.training)
        except UsageError:
            return None

    def predict(self, **changes: Any) -> Prediction | None:
        """Predict the iteration with some changes; return None if it cannot be simulated.

        The simulation of the measured iteration may be off by up to `MAX_REPLAY_ERROR`; see
        `predicted`.
        """
        key = repr(sorted(changes.items()))
        if key not in self._predicted:
            prediction = None
            if self.model is not None:
                try:
                    prediction = predict(self.model, **changes)
                except UsageError as error:  # such as a rate between VMs, with all ranks on one VM
                    _log.debug("the change %s cannot be simulated: %s", key, error)
            if prediction is not None and abs(prediction.replay_error) > MAX_REPLAY_ERROR:
                _log.debug(
                    "no simulation is used: it is %+.0f %% off", prediction.replay_error * 100
                )
                prediction = None
            self._predicted[key] = prediction
        return self._predicted[key]

    # the ranks and VMs of the training

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The facts that a run has stored; empty for a cluster."""
        return facts_of(self.training)

    @cached_property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks that are known."""
        try:
            infos = getattr(self.training, "ranks", ())
            return tuple(RankInfo(**info) if isinstance(info, dict) else info for info in infos)
        except TypeError:  # of a run that another version has stored
            return ()

    @cached_property
    def transports(self) -> Mapping[int, tuple[Transport, ...]]:
        """The known transports of each rank's collectives."""
        transports: Mapping[int, tuple[Transport, ...]] = getattr(self.training, "transports", {})
        if transports:
            return transports
        try:
            return transports_from_plain(self.facts.get("transports", {}))
        except (TypeError, ValueError, AttributeError):  # an edited file
            return {}

    @cached_property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """The known snapshots by VM; the snapshots of a stopped cluster are read from its run."""
        take = getattr(self.training, "snapshot", None)
        snapshots: Mapping[str, Snapshot] = take() if callable(take) else {}
        path = getattr(self.timings, "path", None)
        if snapshots or path is None:
            return snapshots
        from workbench.timings.reader import RunReader

        return RunReader(RunFolder(path)).snapshots()

    @cached_property
    def _findings(self) -> list[tuple[str, Finding]]:
        of_vms = [
            (vm, finding)
            for vm, snapshot in self.snapshots.items()
            for finding in diagnose(snapshot)
        ]
        across = diagnose_all(self.snapshots) if len(self.snapshots) > 1 else []
        all_findings = [*of_vms, *(("", finding) for finding in across)]
        on_cpus = all(info.gpu == "CPU" for info in self.ranks)
        return [
            (vm, finding)
            for vm, finding in all_findings
            if finding.severity != "info" and not (on_cpus and "GPU" in finding.subject)
        ]

    def findings(self, rules: Collection[str], vm: str = "") -> tuple[str, str]:
        """Return the findings of some of the doctor's rules, as two texts: evidence and fix.

        Both texts are empty without findings.

        Parameters
        ----------
        rules
            The names of the rules.
        vm
            The VM that the findings must be about; by default any VM.
        """
        vm_pattern = re.compile(rf"(?<![\w.-]){re.escape(vm)}(?![\w.-])")
        matching = {
            (finding.subject, finding.evidence): finding
            for finding_vm, finding in self._findings
            if finding.rule in rules
            and (vm in ("", finding_vm) or vm_pattern.search(finding.subject))
        }
        texts = []
        for subject, evidence in list(matching)[:_MAX_FINDINGS]:
            same_vms = [
                finding_vm for finding_vm, finding in self._findings if finding.evidence == evidence
            ]
            vms = ", ".join(filter(None, dict.fromkeys(same_vms)))
            texts.append(f"{f'{vms}: ' if vms else ''}{subject}: {evidence}")
        shown = list(matching.values())[:_MAX_FINDINGS]
        fixes = dict.fromkeys(finding.fix.rstrip(".") for finding in shown)
        return f"; the doctor finds {'; '.join(texts)}" if texts else "", "; ".join(fixes)

    # the fabric

    @cached_property
    def fabric(self) -> FittedFabric | None:
        """The calibration of these ranks; None without a reliable calibration."""
        return None if self.fabric_unknown else calibration_of(self.training)

    @cached_property
    def fabric_unknown(self) -> str:
        """Why there is no calibration to compare with; empty with a usable calibration."""
        calibration = calibration_of(self.training)
        n = int(self.rows["world_size"].max())
        if calibration is None:
            return _CALIBRATE
        if calibration.n != n:
            return f"the calibration is of {calibration.n} ranks, the training of {n}; {_CALIBRATE}"
        return "" if calibration.reliable else calibration.caveat

    # causes

    def cause(
        self,
        name: str,
        evidence: str,
        change: str,
        saving_us: float,
        *,
        bound: bool = False,
        times_us: npt.NDArray[np.float64] | None = None,
        error_us: float = 0.0,
        unknown: str = "",
        measure: str = "",
    ) -> Cause:
        """Return a cause, with its saving as a share of the iteration and with its interval.

        Parameters
        ----------
        name, evidence, change
            Texts: the name of the cause, the observation, and the advice.
        saving_us
            Saving per iteration; NaN if it is unknown.
        bound
            Whether the saving is only an upper bound.
        times_us
            The time in each iteration to which the saving is proportional. By default, it is the
            time for which training waits for communication.
        error_us
            Error of the model that predicts the saving.
        unknown
            The reason why the saving or its interval is unknown.
        measure
            What the user can measure to find out more; may be empty.
        """
        low, high = interval(
            self.per_iteration_us("exposed") if times_us is None else times_us, saving_us, error_us
        )
        reason = unknown or TOO_FEW
        text = (
            f"unknown: {reason}" if math.isnan(low) else f"{low / 1e3:.2f} to {high / 1e3:.2f} ms"
        )
        figures = (saving_us, saving_us / self.summary.iteration_us, low, high)
        saving, share, low_saving, high_saving = (
            number_or_unknown(figure, reason) for figure in figures
        )
        return Cause(
            name, evidence, change, saving, share, bound, text, measure, low_saving, high_saving
        )

    def predicted(
        self, name: str, evidence: str, change: str, prediction: Prediction, *, measure: str = ""
    ) -> Cause:
        """Return a cause with the saving that the simulation of a change predicts."""
        saved = prediction.measured_us - prediction.predicted_us
        return self.simulated(name, evidence, change, saved, prediction, measure=measure)

    def simulated(
        self,
        name: str,
        evidence: str,
        change: str,
        saving_us: float,
        prediction: Prediction,
        *,
        measure: str = "",
    ) -> Cause:
        """Return a cause with a simulated saving, widened by the error of the simulation.

        If the simulation of the measured iteration is off, the saving is only a bound.

        Parameters
        ----------
        prediction
            Any prediction; it has the error of the simulation of the measured iteration.
        """
        if not prediction.reliable:
            evidence += f"; simulated, the measured iteration is {prediction.replay_error:+.0%} off"
        return self.cause(
            name,
            evidence,
            change,
            min(saving_us, self.summary.exposed_us),
            bound=not prediction.reliable,
            error_us=abs(prediction.replay_error) * prediction.measured_us,
            measure=measure,
        )
