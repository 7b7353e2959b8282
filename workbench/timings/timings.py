"""The door to a cluster's timings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WireError
from workbench.timings import arrivals, frame, stragglers
from workbench.timings.cell_clocks import CellClocks
from workbench.timings.export import Exports
from workbench.timings.store import CollectiveRecord, Rows, Store, between
from workbench.timings.summary import Summary, summarize
from workbench.wire import Address, Inbox, IterationRecord, Layout, Message

if TYPE_CHECKING:
    import pandas as pd

    from workbench.timings.export.publish import Publisher


class Timings(Exports):
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
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.closed = False
        self.clocks = CellClocks()
        self.vms: dict[int, str] = {}
        self._store = Store()
        self._marks = arrivals.Marks()
        self._came = threading.Condition()
        self._running: set[int] = set()
        self._listeners: list[Callable[[], None]] = []
        self._inbox: Inbox | None = None
        self._publisher: Publisher | None = None

    # what users ask

    def to_frame(self) -> pd.DataFrame:
        """Return one row per iteration and rank.

        Columns: iteration, rank, iteration_us, data_us, forward_us,
        backward_us, communication_us, exposed_us, optimizer_us, wait_us,
        bytes, tensors, algbw_gbps, busbw_gbps, overlap, other_us, copy_us. The
        phases data + copy + forward + backward + exposed + optimizer + other
        add up to the iteration. With a GPU, duration and phases are those of
        its stream, else of the host's clock. Communication is of all
        collectives, the cell's own included, with their queueing. NaN where a
        figure is not known.
        """
        return frame.iterations(self.rows())

    def collectives(self) -> pd.DataFrame:
        """Return one row per iteration, rank and collective; see `frame.collectives`."""
        return frame.collectives(self._store.collectives())

    def stragglers(self) -> pd.DataFrame:
        """Return the stretches, and single iterations, in which the others waited for one rank.

        Columns: rank, phase, excess_us, first_iteration, last_iteration, kind,
        how_often, late_us, uncertainty_us; see `stragglers.Straggler`.
        """
        import pandas as pd

        names = [field.name for field in fields(stragglers.Straggler)]
        return pd.DataFrame(stragglers.find(self.rows()), columns=names)

    def arrivals(self) -> pd.DataFrame:
        """Return one row per iteration and rank: its arrival at the first and last collective.

        Columns: iteration, rank, first_us, last_us, late_us, uncertainty_us;
        see `arrivals.table`.
        """
        return arrivals.table(self.rows())

    def summary(self, latest: int | None = None) -> Summary:
        """Return the key figures of all iterations, or of the `latest`."""
        return summarize(self.rows(), latest)

    def __len__(self) -> int:
        """Return the number of rows that ever arrived."""
        return self._store.total

    # what the cluster and the views ask

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from the `start`-th on (see `arrivals.MARKED`)."""
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
        return first, self._marks.join(first, rows, self.clocks)

    @property
    def dropped(self) -> int:
        """Records that were lost before they arrived, or could not be read."""
        return self._store.dropped + len(self.errors)

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """Records that each rank dropped before they were sent."""
        return self._store.dropped_by_rank

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
        self.clocks.joined()

    def begin_cell(self, cell: int) -> None:
        """A cell starts to run."""
        self._running.add(cell)
        self.clocks.begin_cell(cell)
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
        self._tell()
        return complete()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, when a cell begins or ends; return how to stop."""
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
                record = IterationRecord.unpack(data)
                self._marks.add(self._store.total, record)
                self._store.add(rank, record)
            except WireError as error:
                self._unreadable(error)
        with self._came:
            self._came.notify_all()

    def _unreadable(self, error: WireError) -> None:
        self.errors.append(str(error))

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()
