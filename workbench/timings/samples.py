"""Samples of a run's VMs: on their way to disk, and as a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from workbench.resources import Unknown
from workbench.resources.codec import encode
from workbench.resources.usage import Sample

if TYPE_CHECKING:
    import pandas as pd

PERIOD_S = 2.0
"""Interval between the samples of a VM while a cell runs; one takes some 2 ms of CPU time there."""
PER_INTERVAL = 3600
"""After so many samples of a VM, the interval between those that are stored doubles."""
_MAX_PENDING = 4096
"""Samples that wait for the first iteration, or for the disk."""

COLUMNS = ("time_s", "vm", "sample")
"""Columns of ``samples-K.arrows``: seconds since the epoch, the VM's name, and the JSON text of
`Sample.to_plain`, or of ``{"unknown": reason}`` where the VM did not answer."""

Pending = tuple[float, str, str]
"""The columns of one sample that is not yet stored."""


@dataclass(frozen=True)
class RecordedSample:
    """A sample of one VM in a run.

    Attributes
    ----------
    time_s
        Seconds since the epoch, by the kernel's clock.
    vm
        The VM's name.
    sample
        Its use at that time, or why it is unknown.
    """

    time_s: float
    vm: str
    sample: Sample | Unknown


def interval_s(stored: int) -> float:
    """Return the interval after which a VM's next sample is stored, when `stored` ones are."""
    return float(PERIOD_S * 2 ** (stored // PER_INTERVAL))


class SampleLog:
    """Samples that wait to be written, at a growing interval, so that a run's file is bounded.

    Of the first 3,600 samples of a VM (two hours of cells at 2 s) all are stored, of the next
    3,600 every second one, then every fourth, and so on: a week of training has some 22,000.

    Attributes
    ----------
    dropped
        Samples that were lost because they could not be written in time.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._lock = threading.Lock()
        self._pending: list[Pending] = []
        self._rounds = 0
        self._last_s = float("-inf")

    @property
    def interval_s(self) -> float:
        """The current interval between stored samples, in seconds."""
        return interval_s(self._rounds)

    def add(self, time_s: float, samples: Mapping[str, Sample | Unknown]) -> None:
        """Add the samples of the VMs by name, taken at `time_s`, unless it is too early."""
        with self._lock:
            # half a period of tolerance: the rounds of the sampler are not exact
            if time_s - self._last_s < self.interval_s - PERIOD_S / 2:
                return
            self._last_s = time_s
            self._rounds += 1
            for vm, sample in samples.items():
                self._pending.append((time_s, vm, json.dumps(encode(sample))))
            extra = len(self._pending) - _MAX_PENDING
            if extra > 0:
                self.dropped += extra
                del self._pending[:extra]

    def take(self) -> list[Pending]:
        """Return the samples that wait, and forget them; see `put_back`."""
        with self._lock:
            taken, self._pending = self._pending, []
        return taken

    def put_back(self, samples: list[Pending]) -> None:
        """Keep samples of `take` that could not be written."""
        with self._lock:
            self._pending[:0] = samples


def samples_frame(samples: Iterable[RecordedSample]) -> pd.DataFrame:
    """Return samples as a table with a row per time, VM, device and figure.

    Columns: ``time`` (UTC), ``vm``, ``device`` (``"cpu"``, ``"memory"``, ``"gpu 0"``,
    ``"nic eth0"``), ``figure`` (a field of `CpuUse`, `MemoryUse`, `GpuUse` or `NicUse`, whose
    name has the unit), ``value`` (NaN if unknown) and ``why`` (the reason, otherwise empty).
    """
    import pandas as pd

    rows = [(one.time_s, one.vm, *row) for one in samples for row in _figures(one.sample)]
    frame = pd.DataFrame(rows, columns=["time", "vm", "device", "figure", "value", "why"])
    frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    return frame.astype({"value": float})


def _figures(sample: Sample | Unknown) -> list[tuple[str, str, float, str]]:
    """Return device, figure, value and reason of each number in a sample."""
    if isinstance(sample, Unknown):
        return [("vm", "sample", float("nan"), sample.reason)]
    devices: list[tuple[str, Any]] = [("cpu", sample.cpu), ("memory", sample.memory)]
    devices += [(f"gpu {gpu.index}", gpu) for gpu in sample.gpus]
    devices += [(f"nic {nic.name}", nic) for nic in sample.nics]
    rows = []
    for device, use in devices:
        for field in fields(use):
            value = getattr(use, field.name)
            if field.name in _NAMES:
                continue
            if isinstance(value, Unknown):
                rows.append((device, field.name, float("nan"), value.reason))
            elif isinstance(value, int | float):
                rows.append((device, field.name, float(value), ""))
    return rows


_NAMES = frozenset({"index", "uuid", "name", "held_by", "errors"})
"""Fields that are no figures."""
