"""Samples of a run's VMs: a queue of samples for the disk, and samples as a table."""

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
"""Seconds between the samples of a VM while a cell runs. A sample takes the VM about 2 ms of CPU
time."""
PER_INTERVAL = 3600
"""Number of samples of a VM after which the interval between stored samples doubles."""
_MAX_PENDING = 4096
"""Maximum number of samples that wait for the first iteration, or for the disk."""

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
        The use of the VM at that time, or the reason why it is unknown.
    """

    time_s: float
    vm: str
    sample: Sample | Unknown


def interval_s(stored: int) -> float:
    """Return the interval until a VM's next sample is stored, if `stored` samples have been stored.

    Examples
    --------
    >>> interval_s(0), interval_s(3600), interval_s(7200)
    (2.0, 4.0, 8.0)
    """
    return float(PERIOD_S * 2 ** (stored // PER_INTERVAL))


class SampleLog:
    """Samples that wait to be written, at a growing interval, so that a run's file is bounded.

    Until 3,600 samples of a VM are stored (two hours of cells at 2 s), every sample is stored. For
    the next 3,600 stored samples, every second sample is stored, then every fourth, and so on. A
    week of training has about 22,000 stored samples.

    Attributes
    ----------
    dropped
        Number of samples that were lost because they could not be written in time.
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
        """Add samples of the VMs, by name, unless `time_s` is too soon after the samples before."""
        with self._lock:
            # half a period of tolerance, because the rounds of the sampler are not exact
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
        """Remove and return the samples that wait; see `put_back`."""
        with self._lock:
            pending = self._pending
            self._pending = []
        return pending

    def put_back(self, samples: list[Pending]) -> None:
        """Add samples again that `take` returned and that could not be written."""
        with self._lock:
            self._pending[:0] = samples


def samples_frame(samples: Iterable[RecordedSample]) -> pd.DataFrame:
    """Return samples as a table with a row per time, VM, device and figure.

    Columns: ``time`` (UTC), ``vm``, ``device`` (``"cpu"``, ``"memory"``, ``"gpu 0"``,
    ``"nic eth0"``), ``figure`` (a field of `CpuUse`, `MemoryUse`, `GpuUse` or `NicUse`; its name
    has the unit), ``value`` (NaN if unknown) and ``why`` (the reason if unknown, otherwise empty).
    """
    import pandas as pd

    rows = [
        (recorded.time_s, recorded.vm, *row)
        for recorded in samples
        for row in _figures(recorded.sample)
    ]
    frame = pd.DataFrame(rows, columns=["time", "vm", "device", "figure", "value", "why"])
    frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    return frame.astype({"value": float})


def _figures(sample: Sample | Unknown) -> list[tuple[str, str, float, str]]:
    """Return a row for each number in a sample: device, figure, value and reason."""
    if isinstance(sample, Unknown):
        return [("vm", "sample", float("nan"), sample.reason)]
    devices: list[tuple[str, Any]] = [("cpu", sample.cpu), ("memory", sample.memory)]
    devices += [(f"gpu {gpu.index}", gpu) for gpu in sample.gpus]
    devices += [(f"nic {nic.name}", nic) for nic in sample.nics]
    rows = []
    for device, use in devices:
        for field in fields(use):
            value = getattr(use, field.name)
            if field.name in _NO_FIGURES:
                continue
            if isinstance(value, Unknown):
                rows.append((device, field.name, float("nan"), value.reason))
            elif isinstance(value, int | float):
                rows.append((device, field.name, float(value), ""))
    return rows


_NO_FIGURES = frozenset({"index", "uuid", "name", "held_by", "errors"})
"""Fields that are not figures."""
