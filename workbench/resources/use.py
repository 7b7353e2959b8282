"""Use of allocated GPUs and ranks by day and notebook, in a small local database.

The database is `use.sqlite` in ``$XDG_STATE_HOME/gradient-workbench`` (``~/.local/state``). It
has one row per day, notebook, cluster, VM and device, for `KEPT_DAYS` days, and never leaves this
VM. With ``GRADIENT_WORKBENCH_USE=off`` nothing is written.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from workbench.errors import UsageError
from workbench.safefiles import make_private_folder, xdg_folder

_log = logging.getLogger(__name__)

VARIABLE = "GRADIENT_WORKBENCH_USE"
KEPT_DAYS = 92
"""Days after which rows are deleted."""
BUSY_SHARE = 0.05
"""A device with a used share below this is idle."""
IDLE_FROM_S = 600.0
"""Allocations shorter than this are not listed as idle."""
_MAX_ROWS = 100_000
_LOCK_S = 1.0
"""Maximum time to wait for another process that writes."""
_KEYS = ("day", "notebook", "cluster", "vm", "device")


@dataclass(frozen=True)
class UseRecord:
    """Use of one device, or of the CPU ranks of one VM, on one day.

    Attributes
    ----------
    day
        As ``"2026-11-23"``, in local time.
    notebook
        Path of the notebook on its server, or the name of the program.
    cluster, vm
        Names.
    device
        ``"GPU 0"``, or ``"CPU ranks"``: all ranks of the VM that train without a GPU.
    allocated_s
        GPU-seconds, or rank-seconds of CPU ranks, during which a running cluster had the device.
    measured_s
        The part of `allocated_s` for which use was measured; the rest is unknown.
    used_s
        For a GPU: NVML's utilization (the share of its last sampling period during which any
        kernel of any process ran) times seconds. For CPU ranks: CPU time of their processes per
        PyTorch thread, at most 1 second per second. Communication that polls counts as use.
    cells_s
        The part of `allocated_s` during which a cell ran.
    first_s, last_s
        First and last observation, in seconds since the epoch.
    busy_s
        When at least `BUSY_SHARE` was last used; 0 if it never was.

    Examples
    --------
    >>> record = UseRecord(
    ...     "2026-11-23", "train.ipynb", "storm-7", "vm1", "GPU 0",
    ...     allocated_s=3600, measured_s=3000, used_s=1500, cells_s=1800,
    ...     first_s=0, last_s=3600, busy_s=3600)
    >>> record.share
    0.5
    >>> idle_allocations([record])
    []
    """

    day: str
    notebook: str
    cluster: str
    vm: str
    device: str
    allocated_s: float
    measured_s: float
    used_s: float
    cells_s: float
    first_s: float
    last_s: float
    busy_s: float

    @property
    def share(self) -> float:
        """Used over measured time, 0 to 1; NaN if nothing was measured."""
        return self.used_s / self.measured_s if self.measured_s > 0 else math.nan


def is_on() -> bool:
    """Return whether use is recorded. ``GRADIENT_WORKBENCH_USE=off`` (or 0, no, false) stops it."""
    return os.environ.get(VARIABLE, "").strip().lower() not in {"off", "0", "no", "false"}


def notebook_name() -> str:
    """Return the notebook of this kernel as its Jupyter server named it, or the program's name."""
    path = os.environ.get("JPY_SESSION_NAME", "").strip()
    return path or os.path.basename(sys.argv[0] or "") or "python"  # noqa: PTH119 - any text


def today() -> str:
    """Return the current day in local time."""
    return datetime.date.today().isoformat()


class UseStore:
    """The database of use.

    Parameters
    ----------
    path
        The file; by default the file of this user.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or xdg_folder("XDG_STATE_HOME", ".local/state") / (
            "gradient-workbench/use.sqlite"
        )

    def add(self, records: Iterable[UseRecord]) -> None:
        """Add times to the stored rows, and delete old rows.

        Raises
        ------
        OSError, sqlite3.Error
            If the database cannot be written.
        """
        make_private_folder(self.path.parent)
        names = [field.name for field in fields(UseRecord)]
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in names[5:9])
        with self._open() as connection, connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS use ({', '.join(names)}, "
                f"PRIMARY KEY ({', '.join(_KEYS)}))"
            )
            connection.executemany(
                f"INSERT INTO use VALUES ({', '.join('?' * len(names))}) "  # noqa: S608 - own names
                f"ON CONFLICT ({', '.join(_KEYS)}) DO UPDATE SET {sums}, "
                "first_s = min(first_s, excluded.first_s), "
                "last_s = max(last_s, excluded.last_s), busy_s = max(busy_s, excluded.busy_s)",
                map(astuple, records),
            )
            connection.execute("DELETE FROM use WHERE day < ?", (_day(KEPT_DAYS),))
            connection.execute(
                "DELETE FROM use WHERE rowid NOT IN "
                "(SELECT rowid FROM use ORDER BY last_s DESC LIMIT ?)",
                (_MAX_ROWS,),
            )
        self.path.chmod(0o600)
        _log.debug("Use was added to %s", self.path)

    def read(self, days: int) -> list[UseRecord]:
        """Return the rows of the last `days` days including today, the oldest first.

        Raises
        ------
        UsageError
            `days` is not from 1 to `KEPT_DAYS`, or the file cannot be read.
        """
        if not 1 <= days <= KEPT_DAYS:
            raise UsageError(f"--days {days}: {KEPT_DAYS} days are kept. Give 1 to {KEPT_DAYS}.")
        if not self.path.exists():
            return []
        names = ", ".join(field.name for field in fields(UseRecord))
        try:
            with self._open() as connection:
                rows = connection.execute(
                    f"SELECT {names} FROM use WHERE day >= ? "  # noqa: S608 - own names
                    "ORDER BY day, notebook, cluster, vm, device",
                    (_day(days - 1),),
                ).fetchall()
        except sqlite3.Error as error:
            raise UsageError(
                f"{self.path}: the use of GPUs cannot be read ({error}). Try again, or remove it."
            ) from error
        return [UseRecord(*row) for row in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=_LOCK_S)
        try:
            yield connection
        finally:
            connection.close()


def _day(ago: int) -> str:
    return (datetime.date.today() - datetime.timedelta(days=ago)).isoformat()


def idle_allocations(records: Iterable[UseRecord]) -> list[UseRecord]:
    """Return allocations with a used share below `BUSY_SHARE`, the longest first.

    The days of an allocation (one cluster, VM and device, by one notebook) are joined.
    Allocations of less than `IDLE_FROM_S`, or with an unknown use, are left out.
    """
    joined: dict[tuple[str, ...], UseRecord] = {}
    for record in records:
        key = (record.notebook, record.cluster, record.vm, record.device)
        joined[key] = _join(joined[key], record) if key in joined else record
    idle = [record for record in joined.values() if record.share < BUSY_SHARE]
    long = [record for record in idle if record.allocated_s >= IDLE_FROM_S]
    return sorted(long, key=lambda record: -record.allocated_s)


def by_day(records: Iterable[UseRecord]) -> list[UseRecord]:
    """Return the use of each day, notebook and kind of device (``"GPU"`` or ``"CPU ranks"``)."""
    joined: dict[tuple[str, ...], UseRecord] = {}
    for record in records:
        is_gpu = record.device.startswith("GPU")
        device = record.device.partition(" ")[0] if is_gpu else record.device
        key = (record.day, record.notebook, device)
        row = replace(record, cluster="", vm="", device=device)
        joined[key] = _join(joined[key], row) if key in joined else row
    return list(joined.values())


def _join(a: UseRecord, b: UseRecord) -> UseRecord:
    return replace(
        a,
        allocated_s=a.allocated_s + b.allocated_s,
        measured_s=a.measured_s + b.measured_s,
        used_s=a.used_s + b.used_s,
        cells_s=a.cells_s + b.cells_s,
        first_s=min(a.first_s, b.first_s),
        last_s=max(a.last_s, b.last_s),
        busy_s=max(a.busy_s, b.busy_s),
    )


USE_HEAD = ("day", "notebook", "device", "hours", "in cells", "used", "share of use")
IDLE_HEAD = ("notebook", "cluster", "VM", "device", "hours", "used", "idle since")
NOTES = (
    (
        "Hours are GPU-hours (of CPU ranks: rank-hours) for which a running cluster had the "
        "device. GPU use is NVML's utilization; use of CPU ranks is CPU time per PyTorch thread."
    ),
    f"Recorded here only, for {KEPT_DAYS} days; {VARIABLE}=off ends it.",
)
NOTHING = "No use was recorded in this time."
OFF = f"Recording is off: {VARIABLE}=off."


def use_rows(records: Iterable[UseRecord]) -> list[tuple[str, ...]]:
    """Return the rows under `USE_HEAD`."""
    return [
        (
            *(record.day, record.notebook, record.device),
            *_hours(record.allocated_s, record.cells_s),
            *_used(record),
        )
        for record in by_day(records)
    ]


def idle_rows(records: Iterable[UseRecord]) -> list[tuple[str, ...]]:
    """Return the rows under `IDLE_HEAD`."""
    return [
        (
            *(record.notebook, record.cluster, record.vm, record.device),
            *_hours(record.allocated_s),
            _used(record)[1],
            _time(record.busy_s or record.first_s),
        )
        for record in idle_allocations(records)
    ]


def _hours(*durations_s: float) -> tuple[str, ...]:
    return tuple(f"{duration_s / 3600:,.2f}" for duration_s in durations_s)


def _used(record: UseRecord) -> tuple[str, str]:
    if math.isnan(record.share):
        return "\u2013 (not measured)", "\u2013 (not measured)"
    measured_share = record.measured_s / record.allocated_s if record.allocated_s else 1.0
    note = f" (of the {measured_share:.0%} that was measured)" if measured_share < 0.9 else ""
    return f"{record.used_s / 3600:,.2f}", f"{record.share * 100:.1f} %{note}"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
