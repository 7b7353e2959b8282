"""A small real `TimingSource`: timings made by formula, as two or more ranks give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from workbench.resources import Unknown
from workbench.timings.figures import FIRST
from workbench.timings.totals import CollectiveTotal
from workbench.timings.verdict import Cause, Verdict
from workbench.widgets.earlier_runs import EarlierRun
from workbench.widgets.source import (
    COLUMNS,
    Details,
    KeyFigures,
    RankPlace,
    RowWindow,
    State,
    Status,
    StragglerEntry,
)

WAITING = "Waiting for the first iteration: run a %%distributed cell that trains."


class SyntheticSource:
    """Has the rows of one run at a time; `step` adds an iteration."""

    def __init__(self, ranks: int = 2, nominal: float | Unknown = 10.0) -> None:
        self.ranks = ranks
        self.calibrated: float | Unknown = Unknown("nobody has calibrated")
        self._nominal = nominal
        self._random = np.random.default_rng(7)
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._rows: list[list[float]] = []
        self._run = 0
        self._state: State = "waiting"
        self._message = WAITING

    def status(self) -> Status:
        half = max(1, self.ranks // 2)
        places = tuple(RankPlace(r, f"vm{1 + r // half}") for r in range(self.ranks))
        verdict = self.explain() if self._state == "ended" and self._rows else None
        return Status(self._run, self._state, self._message, places, "", verdict, logged=("loss",))

    def profile(self, seconds: float) -> str:
        return f"no rank is real, so none is profiled for {seconds} s"

    def earlier_runs(self) -> tuple[str, ...]:
        return ("faster", "gone")

    def earlier_run(self, name: str) -> EarlierRun | Unknown:
        """Return 300 iterations, each of 15 ms."""
        if name != "faster":
            return Unknown(f"run {name!r}: there is no such run.")
        return EarlierRun(name, 300, 1, (15_000.0,) * 300, 15_000.0)

    def explain(self) -> Verdict:
        """Name one cause, which every iteration has."""
        cause = Cause(
            "exposed communication", "training waits 5.60 ms for <gradients>",
            "send less", 2800.0, 0.15, bound=True,
        )  # fmt: skip
        last = len(self._rows) // self.ranks - 1
        return Verdict(
            "18.5 ms per iteration; first cause: exposed communication (up to 2.8 ms); change: "
            "send less", 1, max(0, last - 63), last, self.ranks, 18500.0, 18400.0, 5600.0, 0.3,
            300.0, 1600.0, 3700.0, Unknown("its batches have no common first dimension"), (cause,),
        )  # fmt: skip

    def summary(self) -> KeyFigures:
        with self._lock:
            rows = self._rows[-50 * self.ranks :]
        return self._figures(np.array(rows, dtype=float))

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        with self._lock:
            end = len(self._rows) // self.ranks - 1 if last is None else last
            begin = max(0, end - 99) if first is None else first
            rows = self._rows[begin * self.ranks : (end + 1) * self.ranks]
        late = StragglerEntry(self.ranks - 1, "backward", 4000.0, 4000.0, 200, 259)
        return Details(
            begin if rows else -1,
            end,
            self._figures(np.array(rows, dtype=float)),
            self._collectives(),
            6,
            begin,
            (late,) if begin < 260 and end >= 204 else (),
        )

    def before(self, iteration: int, max_rows: int) -> RowWindow:
        with self._lock:
            end = iteration * self.ranks
            return self._pack(self._rows[max(0, end - max_rows) : end])

    def _collectives(self) -> tuple[CollectiveTotal, ...]:
        sizes = [int(4e6 / 2**at) for at in range(6)]
        return tuple(
            CollectiveTotal(
                f"layer{at}.weight", "allreduce", 0, "optimizer", size,
                900.0 + size / 1e3, 600.0, 300.0 + size / 1e3, 8.0 - at, 0.4 / 2**at,
            )
            for at, size in enumerate(sizes)
        )  # fmt: skip

    def _figures(self, rows: np.ndarray) -> KeyFigures:
        if len(rows) == 0:
            return KeyFigures(*[Unknown("no iteration has arrived yet")] * 15)
        mean = dict(zip(COLUMNS, rows.mean(axis=0).tolist(), strict=True))
        last = rows[-self.ranks :]
        wait = last[:, COLUMNS.index("wait_us")]
        return KeyFigures(
            iteration=rows[-1, 0],
            iterations_per_s=1e6 / mean["iteration_us"],
            iteration_us=mean["iteration_us"],
            exposed_us=mean["exposed_us"],
            exposed_share=mean["exposed_us"] / mean["iteration_us"],
            waiting_us=mean["wait_us"],
            queued_us=mean["queued_us"],
            transfer_us=mean["transfer_us"],
            busbw_gbps=mean["busbw_gbps"],
            nominal_gbps=self._nominal,
            calibrated_gbps=self.calibrated,
            calibrated_error=0.05,
            slowest_rank=float(wait.argmin()),
            slowest_excess_us=float(wait.max()),
            dropped=0.0,
            transport="Gloo: TCP eth0",
            first_iteration=rows[0, 0],
            last_iteration=rows[-1, 0],
        )

    def window(self, max_rows: int) -> RowWindow:
        with self._lock:
            keep = max_rows - max_rows % self.ranks
            return self._pack(self._rows[-keep:])

    def since(self, cursor: int) -> RowWindow | None:
        with self._lock:
            if cursor > len(self._rows):
                return None
            return self._pack(self._rows[cursor:])

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def begin(self) -> None:
        """Begin another run."""
        with self._lock:
            self._rows = []
            self._run += 1
        self._tell("waiting", WAITING)

    def step(self, count: int = 1) -> None:
        """Add iterations."""
        for _ in range(count):
            with self._lock:
                self._rows.extend(self._iteration(len(self._rows) // self.ranks))
        self._tell("running", f"running on {self.ranks} ranks")

    def end(self) -> None:
        """End the run."""
        total = len(self._rows) // self.ranks
        self._tell("ended", f"The run ended after {total:,} iterations.")

    def train(self, seconds: float, period: float = 0.025) -> None:
        """Add iterations in real time, then end the run."""
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            self.step()
            time.sleep(period)
        self.end()

    def _iteration(self, number: int) -> list[list[float]]:
        random = self._random
        slow = 4000.0 if number % 400 in range(200, 260) else 0.0
        data = 420 + 90 * random.random(self.ranks)
        copy = np.zeros(self.ranks)
        forward = 3800 + 250 * random.random(self.ranks)
        backward = 7600 + 400 * random.random(self.ranks)
        backward[-1] += slow
        ready = data + forward + backward
        wait = ready.max() - ready
        comm = 6600 + 500 * random.random() + (9000 if number % 97 == 50 else 0) + wait
        overlapped = np.minimum(comm - 500, 3400 + 300 * random.random(self.ranks))
        exposed = comm - overlapped + (60_000 if number == 0 else 0)
        wait = np.minimum(wait, exposed)
        queued, transfer = 0.3 * (exposed - wait), 0.7 * (exposed - wait)
        optimizer = 700 + 60 * random.random(self.ranks)
        other = 250 + 80 * random.random(self.ranks)
        total = ready + exposed + optimizer + other
        algbw = 6.4e6 * 8 / (comm - wait) / 1e3 * np.ones(self.ranks)
        busbw = algbw * 2 * (self.ranks - 1) / self.ranks
        end = (number + 1) * 0.0185 * np.ones(self.ranks)
        head = [np.full(self.ranks, number), np.arange(self.ranks)]
        phases = [data, copy, forward, backward, exposed, optimizer, other]
        left_out = np.full(self.ranks, FIRST if number == 0 else 0)
        loss = (2 / (1 + number / 200) + 0.1 * random.random(self.ranks)) * np.ones(self.ranks)
        if number % 250 == 120:
            loss[:] = np.inf
        speed = 32e6 / total
        logged = [speed, loss, np.full(self.ranks, np.nan)]
        rest = [comm, overlapped, wait, queued, transfer, algbw, busbw, end, left_out, *logged]
        return np.stack([*head, total, *phases, *rest], axis=1).tolist()

    def _pack(self, rows: list[list[float]]) -> RowWindow:
        data = np.array(rows, dtype=np.float32).reshape(len(rows), len(COLUMNS)).T
        return RowWindow(len(self._rows), np.ascontiguousarray(data))

    def _tell(self, state: State, message: str) -> None:
        self._state, self._message = state, message
        for callback in list(self._callbacks):
            callback()
