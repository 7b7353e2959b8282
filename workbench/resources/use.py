"""Use of allocated GPUs and ranks by day and notebook, in a small local database.

The database is `use.sqlite` in ``$XDG_STATE_HOME/gradient-workbench`` (``~/.local/state``). It
has one row per day, notebook, cluster, VM and device, for `KEPT_DAYS` days, and never leaves this
machine. With ``GRADIENT_WORKBENCH_USE=off`` nothing is written.
"""

from __future__ import annotations

import contextlib
import datetime
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

VARIABLE = "GRADIENT_WORKBENCH_USE"
KEPT_DAYS = 92
"""Days after which rows are deleted."""
BUSY_SHARE = 0.05
"""A device used less than this is idle."""
IDLE_FROM_S = 600.0
"""Allocations shorter than this are not listed as idle."""
_MAX_ROWS = 100_000
_LOCK_S = 1.0
"""How long a process waits for another one that writes."""
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
        GPU-seconds, or rank-seconds of CPU ranks, for which a running cluster had the device.
    measured_s
        The part of `allocated_s` in which use was measured; the rest is unknown.
    used_s
        Of a GPU: NVML's utilization (the share of its last sampling period in which any kernel ran,
        of any process) times seconds. Of CPU ranks: CPU time of their processes per PyTorch
        thread, at most 1 second per second. Communication that polls counts as use.
    cells_s
        The part of `allocated_s` in which a cell ran.
    first_s, last_s
        First and last observation, in seconds since the epoch.
    busy_s
        When at least `BUSY_SHARE` was last used; 0 if it never was.
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
    """Whether use is recorded, which ``GRADIENT_WORKBENCH_USE=off`` (or 0, no, false) ends."""
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
        The file; by default that of the user.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or xdg_folder("XDG_STATE_HOME", ".local/state") / (
            "gradient-workbench/use.sqlite"
        )

    def add(self, records: Iterable[UseRecord]) -> None:
        """Add times to those that are stored; delete old rows.

        Raises
        ------
        OSError, sqlite3.Error
            It cannot be written.
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
    """Return allocations of which less than `BUSY_SHARE` was used, the longest first.

    The days of an allocation are joined: of one cluster, VM and device, by one notebook. Those of
    less than `IDLE_FROM_S`, or with an unknown use, are left out.
    """
    joined: dict[tuple[str, ...], UseRecord] = {}
    for one in records:
        key = one.notebook, one.cluster, one.vm, one.device
        joined[key] = _join(joined[key], one) if key in joined else one
    idle = [one for one in joined.values() if one.share < BUSY_SHARE]
    long = [one for one in idle if one.allocated_s >= IDLE_FROM_S]
    return sorted(long, key=lambda one: -one.allocated_s)


def by_day(records: Iterable[UseRecord]) -> list[UseRecord]:
    """Return the use of each day, notebook and kind of device (``"GPU"`` or ``"CPU ranks"``)."""
    joined: dict[tuple[str, ...], UseRecord] = {}
    for one in records:
        device = one.device.partition(" ")[0] if one.device.startswith("GPU") else one.device
        key = one.day, one.notebook, device
        row = replace(one, cluster="", vm="", device=device)
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
        (one.day, one.notebook, one.device, *_hours(one.allocated_s, one.cells_s), *_used(one))
        for one in by_day(records)
    ]


def idle_rows(records: Iterable[UseRecord]) -> list[tuple[str, ...]]:
    """Return the rows under `IDLE_HEAD`."""
    return [
        (
            *(one.notebook, one.cluster, one.vm, one.device),
            *_hours(one.allocated_s),
            _used(one)[1],
            _time(one.busy_s or one.first_s),
        )
        for one in idle_allocations(records)
    ]


def _hours(*seconds: float) -> tuple[str, ...]:
    return tuple(f"{one / 3600:,.2f}" for one in seconds)


def _used(one: UseRecord) -> tuple[str, str]:
    if math.isnan(one.share):
        return "\u2013 (not measured)", "\u2013 (not measured)"
    part = one.measured_s / one.allocated_s if one.allocated_s else 1.0
    note = f" (of the {part:.0%} that was measured)" if part < 0.9 else ""
    return f"{one.used_s / 3600:,.2f}", f"{one.share * 100:.1f} %{note}"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
