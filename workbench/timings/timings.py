"""The door to a cluster's timings."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import WireError
from workbench.timings import arrivals, totals
from workbench.timings.answers import Answers
from workbench.timings.cell_clocks import CellClocks
from workbench.timings.keeper import Keeper
from workbench.timings.runs import FolderLike, new_path
from workbench.timings.store import COLUMNS, ROW, CollectiveRecord, Rows, Store, between
from workbench.timings.summary import UNHEARD
from workbench.wire import Address, Inbox, IterationRecord, Layout, Message

if TYPE_CHECKING:
    from workbench.timings.export.publish import Publisher
    from workbench.timings.writer import RunWriter

_FLUSH_S = 5.0
"""A cell's end waits for the disk no longer than this."""
_NAMED = 8
"""Ranks that a remark names."""


class Timings(Answers):
    """Receives the ranks' records in a thread of its own, and answers for them.

    Attributes
    ----------
    vms
        Host name of each rank's VM, where known.
    errors
        What could not be read, newest last; nothing is lost silently.
    closed
        Nothing more will arrive.
    clocks
        The ranks' clocks on the kernel's.
    path
        Of the run on disk, which `workbench.open_run` reads; None where none was begun.
    storage_errors
        Why the run could not be written to disk, newest last; in memory all goes on.
    remark
        What is odd about the last cell's iterations, in a sentence, or an empty string.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.closed = False
        self.clocks = CellClocks()
        self.path: Path | None = None
        self.storage_errors: list[str] = []
        self.remark = ""
        self.vms: dict[int, str] = {}
        self._store = Store()
        self._came = threading.Condition()
        self._running: set[int] = set()
        self._listeners: list[Callable[[], None]] = []
        self._inbox: Inbox | None = None
        self._facts: dict[str, Any] = {}
        self._written = (0, 0)
        self._keeper: Keeper | None = None
        self._warned = 0
        self._publisher: Publisher | None = None

    def collective_totals(self, first: int, last: int) -> totals.CollectiveTotals:
        """Return what each collective cost in the iterations `first` to `last`, both included.

        Read from a sample of at most `totals.MOST_RECORDS` records; single
        collectives of long ago are no longer held.
        """
        return totals.total(self.records(first, last))

    def __len__(self) -> int:
        """Return the number of rows that ever arrived."""
        return self._store.total

    def __str__(self) -> str:
        return "these timings" if self.path is None else self.path.name

    # what the cluster and the views ask

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from the `start`-th on (see `arrivals.ALIGNED`)."""
        return self.read(start)[1]

    def places(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return self.vms

    def known_clocks(self) -> CellClocks:
        """Return what the ranks' pings told of their clocks."""
        return self.clocks

    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records of single collectives that memory holds, of some iterations."""
        return [one for one in self._store.collectives() if between(one.iteration, first, last)]

    def read(self, start: int) -> tuple[int, Rows]:
        """Return the number of the first row still held from the `start`-th on, and the rows."""
        first, rows = self._store.read(start)
        return first, arrivals.align(rows, self.clocks)

    def between(self, first: int, last: int) -> Rows:
        """Return the raw rows still held of the iterations `first` to `last`, both included."""
        return arrivals.align(self._store.between(first, last), self.clocks)

    @property
    def dropped(self) -> int:
        """Records that were lost before they arrived, or could not be read."""
        return self._store.dropped + len(self.errors)

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """Records that each rank dropped before they were sent."""
        return self._store.dropped_by_rank

    @property
    def unheard(self) -> bool:
        """Whether a cell that runs communicates within its iterations where nothing can time it."""
        return any(map(self._store.unheard, tuple(self._running)))

    @property
    def running(self) -> bool:
        """Whether a cell runs that may send more."""
        return bool(self._running)

    def describe(self, cluster: str, vms: dict[int, str]) -> None:
        """Say whose timings these are; from then on the Jupyter server knows of them.

        Parameters
        ----------
        cluster
            Its name.
        vms
            Host name of each rank's VM.
        """
        self.vms = vms
        if self._publisher is None:
            from workbench.timings.export.publish import Publisher

            self._publisher = Publisher(self, cluster)

    def listen(self, interface: str = "127.0.0.1", state: dict[str, Any] | None = None) -> None:
        """Open a port for the ranks on `interface`, or go on from an earlier `state`."""
        if state is not None and state.get("run") is not None:
            self._restore(Path(state["run"]))
        self._inbox = Inbox(
            self._receive,
            interface=interface,
            on_error=self._unreadable,
            name="timings",
            state=state,
        )

    def to_state(self) -> dict[str, Any]:
        """Return how the ranks find this port, and the run, for whoever takes over from here."""
        assert self._inbox is not None
        return self._inbox.to_state() | {"run": None if self.path is None else str(self.path)}

    def keep(
        self,
        name: str,
        ranks: list[dict[str, Any]],
        *,
        folder: FolderLike | None = None,
        **facts: Any,
    ) -> None:
        """Write down on disk what arrives, as one run; called again where the ranks are others.

        Parameters
        ----------
        name
            The cluster's.
        ranks
            Who they are: plain values, ``rank`` and ``vm`` among them.
        folder
            Where runs are kept; see `runs.runs_folder`.
        facts
            More about the run, plain values.
        """
        self._facts |= {"cluster": name, "world_size": len(ranks), "ranks": ranks, **facts}
        if self._keeper is not None:
            return
        try:
            self.path = self.path or new_path(name, folder)
        except (OSError, RuntimeError) as error:  # no home, or one that cannot be read
            self.storage_errors.append(f"this run is not being written down: {error}")
            return
        self._keeper = Keeper(self._make_writer, self.storage_errors.append)

    def address_for(self, rank: int) -> Address:
        """Let a rank in, and return how it connects."""
        assert self._inbox is not None
        return self._inbox.address_for(rank)

    def joined(self) -> None:
        """The ranks have joined anew."""
        self._store.forget_layouts()
        self.clocks.joined()

    def begin_cell(self, cell: int) -> None:
        """A cell starts to run."""
        self._running.add(cell)
        self.clocks.begin_cell(cell)
        self._warn()
        self._tell()

    def end_cell(self, cell: int, counts: dict[int, int], timeout_s: float = 2.0) -> bool:
        """A cell has ended: wait until the records that its ranks sent have come.

        Parameters
        ----------
        counts
            Records by rank.

        Returns
        -------
        bool
            False where some are missing after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s

        def complete() -> bool:
            return all(self._store.arrived(cell, rank) >= n for rank, n in counts.items())

        with self._came:
            self._came.wait_for(complete, max(0.0, deadline - time.monotonic()))
        self._running.discard(cell)
        self.remark = self._remark(cell, counts)
        if self._keeper is not None and any(counts.values()):
            self._keeper.flush(_FLUSH_S)
        self._warn()
        self._tell()
        return complete()

    def _remark(self, cell: int, counts: dict[int, int]) -> str:
        unheard = f"{UNHEARD}." if self._store.unheard(cell) else ""
        return " ".join(filter(None, (self._count_remark(cell, counts), unheard)))

    def _count_remark(self, cell: int, counts: dict[int, int]) -> str:
        by_count: dict[int, list[int]] = {}
        for rank in counts:
            by_count.setdefault(self._store.iterations(cell, rank), []).append(rank)
        if len(by_count) > 1:
            told = ", ".join(
                f"{count} on {_named(ranks)}" for count, ranks in sorted(by_count.items())
            )
            return f"The ranks ran different numbers of iterations: {told}."
        if 0 in by_count and any(counts.values()):
            return (
                "The cell had collectives, which timings.collectives() has, and no iteration: "
                "one ends with an optimizer's step()."
            )
        return ""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, when a cell begins or ends or records have come.

        Returns how to stop. It must return at once.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        """Stop to listen, and end the run's files; what has arrived stays."""
        self.closed = True
        if self._inbox is not None:
            self._inbox.close()
        if self._keeper is not None:
            self._keeper.close()
        self._running.clear()
        self._tell()
        if self._publisher is not None:
            self._publisher.close()

    def _make_writer(self) -> RunWriter | None:
        # loaded at once, so that the first cell's end does not wait for it
        from workbench.timings.writer import RunWriter

        if self._store.total == self._written[0]:
            return None
        assert self.path is not None
        return RunWriter(self._store, self.read, self.path, self._facts, self._written)

    def _restore(self, path: Path) -> None:
        """Go on with the run that an earlier kernel has begun."""
        from workbench.timings.folder import RunFolder
        from workbench.timings.run import Run

        self.path = path
        if not RunFolder(path).is_run():
            return  # nothing was trained yet
        run = Run(RunFolder(path))
        records = run.records()
        aligned = run.rows()
        rows = np.empty(len(aligned), dtype=ROW)
        for name in COLUMNS:
            rows[name] = aligned[name]
        self._store.restore(rows, records, run.layouts())
        self._written = self._store.total, len(records)

    def _warn(self) -> None:
        """Say in the cell's output what the thread that writes has met since."""
        while self._warned < len(self.storage_errors):
            warnings.warn(self.storage_errors[self._warned], RuntimeWarning, stacklevel=3)
            self._warned += 1

    def _receive(self, rank: int, message: Message) -> None:
        if message.kind == "layout":
            self._store.add_layout(rank, Layout.from_content(message.content))
            return
        for data in message.payload:
            try:
                record = IterationRecord.unpack(data)
                self._store.add(rank, record)
            except WireError as error:
                self._unreadable(error)
        with self._came:
            self._came.notify_all()
        self._tell()

    def _unreadable(self, error: WireError) -> None:
        self.errors.append(str(error))

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks))}" if len(ranks) <= _NAMED else f"{len(ranks)} ranks"
