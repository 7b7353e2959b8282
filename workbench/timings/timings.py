"""The door to a cluster's timings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WireError
from workbench.timings import frame, stragglers, totals
from workbench.timings.store import Rows, Store
from workbench.timings.summary import Summary, summarize
from workbench.timings.totals import CollectiveTotals
from workbench.wire import Address, Inbox, IterationRecord, Layout, Message

if TYPE_CHECKING:
    import pandas as pd


class Timings:
    """Receives the ranks' records in a thread of its own, and answers for them.

    Attributes
    ----------
    errors
        What could not be read, newest last; nothing is lost silently.
    closed
        Nothing more will arrive.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.closed = False
        self._store = Store()
        self._came = threading.Condition()
        self._running: set[int] = set()
        self._listeners: list[Callable[[], None]] = []
        self._inbox: Inbox | None = None

    # what users ask

    def to_frame(self) -> pd.DataFrame:
        """Return one row per iteration and rank.

        Columns: iteration, rank, iteration_us, data_us, forward_us,
        backward_us, communication_us, exposed_us, optimizer_us, wait_us,
        bytes, tensors, algbw_gbps, busbw_gbps, overlap, other_us. The phases
        data + forward + backward + exposed + optimizer + other add up to the
        iteration. Times are of the rank's host clock: work that a GPU does
        meanwhile is not in them. Communication is of gradients, queueing
        included. NaN where a figure is not known.
        """
        return frame.iterations(self.rows())

    def collectives(self) -> pd.DataFrame:
        """Return one row per iteration, rank and gradient collective; see `frame.collectives`."""
        return frame.collectives(self._store.collectives())

    def stragglers(self) -> pd.DataFrame:
        """Return the stretches in which the others waited for one rank.

        Columns: rank, phase, excess_us, first_iteration, last_iteration.
        """
        import pandas as pd

        names = ["rank", "phase", "excess_us", "first_iteration", "last_iteration"]
        return pd.DataFrame(stragglers.find(self.rows()), columns=names)

    def summary(self, latest: int | None = None) -> Summary:
        """Return the key figures of all iterations, or of the `latest`."""
        return summarize(self.rows(), latest)

    def collective_totals(self, first: int, last: int) -> CollectiveTotals:
        """Return what each collective cost in the iterations `first` to `last`, both included.

        Read from a sample of at most `totals.MOST_RECORDS` records; single
        collectives of long ago are no longer held.
        """
        kept = [one for one in self._store.collectives() if first <= one.iteration <= last]
        return totals.total(kept)

    def __len__(self) -> int:
        """Return the number of rows that ever arrived."""
        return self._store.total

    # what the cluster and the views ask

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from the `start`-th on (see `store.ROW`)."""
        return self._store.rows(start)

    def read(self, start: int) -> tuple[int, Rows]:
        """Return the number of the first row still held from the `start`-th on, and the rows."""
        return self._store.read(start)

    def between(self, first: int, last: int) -> Rows:
        """Return the raw rows still held of the iterations `first` to `last`, both included."""
        return self._store.between(first, last)

    @property
    def dropped(self) -> int:
        """Records that were lost before they arrived, or could not be read."""
        return self._store.dropped + len(self.errors)

    @property
    def running(self) -> bool:
        """Whether a cell runs that may send more."""
        return bool(self._running)

    def listen(self, interface: str = "127.0.0.1", state: dict[str, Any] | None = None) -> None:
        """Open a port for the ranks on `interface`, or the one of an earlier `state`."""
        self._inbox = Inbox(
            self._receive,
            interface=interface,
            on_error=self._unreadable,
            name="timings",
            state=state,
        )

    def to_state(self) -> dict[str, Any]:
        """Return how the ranks find this port, for whoever takes this kernel's place."""
        assert self._inbox is not None
        return self._inbox.to_state()

    def save(self, folder: Path) -> None:
        """Write the rows down, for the next kernel; single collectives are not in them."""
        self._store.save(folder)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote, where it did."""
        self._store.restore(folder)

    def address_for(self, rank: int) -> Address:
        """Let a rank in, and return how it connects."""
        assert self._inbox is not None
        return self._inbox.address_for(rank)

    def joined(self) -> None:
        """The ranks have joined anew."""
        self._store.forget_layouts()

    def begin_cell(self, cell: int) -> None:
        """A cell starts to run."""
        self._running.add(cell)
        self._tell()

    def end_cell(self, cell: int, counts: dict[int, int], timeout_s: float = 2.0) -> bool:
        """A cell has ended: wait until the records that its ranks sent have come.

        Parameters
        ----------
        counts
            Iterations by rank.

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
        self._tell()
        return complete()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, when a cell begins or ends or records have come.

        Returns how to stop. It must return at once.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def close(self) -> None:
        """Stop to listen; what has arrived stays."""
        self.closed = True
        if self._inbox is not None:
            self._inbox.close()
        self._running.clear()
        self._tell()

    def _receive(self, rank: int, message: Message) -> None:
        if message.kind == "layout":
            self._store.add_layout(rank, Layout.from_content(message.content))
            return
        for data in message.payload:
            try:
                self._store.add(rank, IterationRecord.unpack(data))
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
