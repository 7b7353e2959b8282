"""The timings of a cluster: received while its ranks train, and queried."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.ranks import phrase
from workbench.timings.queries import TimingsQueries
from workbench.timings.runs import FolderLike
from workbench.timings.separate import SeparateTraining
from workbench.timings.source import LiveSource
from workbench.timings.storage import RunStorage
from workbench.timings.store import Sent
from workbench.timings.summary import UNHEARD
from workbench.wire import Address, Inbox, Layout, Message
from workbench.wire.logged_values import LoggedValues, VmLoggedValues
from workbench.wire.rank_messages import Records
from workbench.wire.vm_messages import VmLayout, VmRecords

if TYPE_CHECKING:
    from workbench.timings.export.publish import Publisher
    from workbench.timings.verdict import Verdict
    from workbench.wire.sample_messages import LineSamples

_log = logging.getLogger(__name__)

RECORDING_OFF = "Recording is off: switch it on with %timings on."
EARLIER = "All figures are of earlier cells."


class Timings(LiveSource, TimingsQueries):
    """The timings of a cluster: received from its ranks, kept in memory, and written to disk.

    A separate thread receives the records. `TimingsQueries` returns tables and figures, and exports
    them to other tools.

    Parameters
    ----------
    one_clock
        Whether all ranks run on the kernel's VM; see `LiveSource`.
    recording
        Whether the first cell is recorded.

    Attributes
    ----------
    closed
        Whether no more records will arrive.
    line_samples
        The latest answer of each rank to `Cluster.sample_lines`, by rank.
    note
        Adds facts, as plain values, to the run that `keep` has begun.
    recording
        Whether the next cell is recorded.
    samples
        The samples of the VMs that are stored with the run.
    storage_errors
        Errors and their reasons if the run could not be written to disk, the newest last.
    separate
        The newest cell without exchanged gradients; None if there is no such cell.
    failures
        Sentences on the kinds of recording that have failed in the last cell, and stopped.
    verdict
        The newest verdict; its `cell` may be earlier than the newest iterations.
    """

    def __init__(self, *, one_clock: bool = False, recording: bool = True) -> None:
        super().__init__(one_clock=one_clock)
        self.recording = recording
        self._last_cell = 0
        """Number of the user's last cell; 0 before the first."""
        self._unrecorded_cell = 0
        """Number of the user's last cell that was not recorded; 0 if all were recorded."""
        self.closed = False
        self._ended: tuple[int, dict[int, int]] = (0, {})
        """The last cell that has ended, and how many records each rank has sent in it."""
        self.line_samples: dict[int, LineSamples] = {}
        self.verdict: Verdict | None = None
        self.separate: SeparateTraining | None = None
        self.failures = ""
        self._arrived = threading.Condition()
        self._inbox: Inbox | None = None
        self._received: list[Sent] = []
        self._publisher: Publisher | None = None
        self._storage = RunStorage(self._store, self.read)
        self.note = self._storage.add
        self.storage_errors = self._storage.errors
        self.samples = self._storage.samples

    def __str__(self) -> str:
        return "these timings" if self.path is None else self.path.name

    # the cluster

    def listen(self, interface: str = "127.0.0.1", state: dict[str, Any] | None = None) -> None:
        """Open a port for the ranks on `interface`, or restore it from an earlier `state`."""
        if state is not None and state.get("run") is not None:
            self.verdict = self._storage.restore(Path(state["run"]))
        if state is not None:
            self.recording = bool(state.get("recording", True))
            self._last_cell = int(state.get("last_cell", 0))
            self._unrecorded_cell = int(state.get("unrecorded_cell", 0))
        self._inbox = Inbox(
            self._receive,
            interface=interface,
            on_error=lambda error: self.errors.append(str(error)),
            after=self._store_received,
            name="timings",
            state=state,
        )
        _log.debug("receiving timings on %s", interface)

    def to_state(self) -> dict[str, Any]:
        """Return the state for the next kernel that attaches: port, run, and what is recorded."""
        assert self._inbox is not None
        return self._inbox.to_state() | {
            "run": None if self.path is None else str(self.path),
            "recording": self.recording,
            "last_cell": self._last_cell,
            "unrecorded_cell": self._unrecorded_cell,
        }

    def address_for(self, rank: int) -> Address:
        """Allow a rank (or `wire.address.of_vm`) to connect, and return the address."""
        assert self._inbox is not None
        return self._inbox.address_for(rank)

    def describe(self, cluster: str, vms: dict[int, str]) -> None:
        """Set the cluster's name and the host name of each rank's VM; start publishing metrics."""
        self.vms = vms
        if self._publisher is None:
            from workbench.timings.export.publish import Publisher

            self._publisher = Publisher(self, cluster)

    def keep(
        self,
        name: str,
        ranks: list[dict[str, Any]],
        *,
        folder: FolderLike | None = None,
        **facts: Any,
    ) -> None:
        """Write the timings to disk as a run, or change the facts about the run.

        Parameters
        ----------
        name
            The cluster's name.
        ranks
            The ranks as plain values, including ``rank`` and ``vm``.
        folder
            The folder of all runs; see `runs.runs_folder`.
        facts
            More facts about the run, as plain values.
        """
        run_facts = {"cluster": name, "world_size": len(ranks), "ranks": ranks, **facts}
        self._storage.begin(run_facts, folder)

    def record(self, *, on: bool) -> None:
        """Set whether the next cells are recorded."""
        self.recording = on
        _log.debug("recording is %s", "on" if on else "off")
        self._notify()

    def begin_cell(self, cell: int, *, recorded: bool = True, of_user: bool = False) -> bool:
        """Begin a cell of the user or of this package; return whether `to_state` has changed."""
        changed = of_user and (self.last_recorded != recorded or not recorded)
        if of_user:
            self._last_cell = cell
            self._unrecorded_cell = self._unrecorded_cell if recorded else cell
        self.lag_s = float("nan")
        if recorded:
            self._running.add(cell)
        _log.debug("cell %d begins (%s)", cell, "recorded" if recorded else "not recorded")
        self.clocks.begin_cell(cell)
        self._storage.warn()
        self._notify()
        return changed

    def end_cell(self, cell: int, counts: dict[int, int], timeout_s: float = 2.0) -> bool:
        """End a cell after its records have arrived; `counts` has their number by rank.

        Return False if some records have not arrived after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s

        def complete() -> bool:
            return all(self._store.counts.arrived(cell, rank) >= n for rank, n in counts.items())

        with self._arrived:
            self._arrived.wait_for(complete, max(0.0, deadline - time.monotonic()))
        self._running.discard(cell)
        # other cells are run by this package, for example for a calibration
        if self._last_cell in {0, cell}:
            self._ended = cell, counts
        self._store.counts.end_cell(cell, counts)
        if any(counts.values()):
            self._storage.flush()
        self._storage.warn()
        self._notify()
        is_complete = complete()
        if is_complete:
            _log.debug("cell %d has ended: %d records", cell, sum(counts.values()))
        else:
            _log.info(
                "cell %d has ended, but some of its %d records did not arrive within %g s",
                *(cell, sum(counts.values()), timeout_s),
            )
        return is_complete

    def note_failures(self, failures: Mapping[int, Mapping[str, str]]) -> bool:
        """Set `failures` for a cell; return whether any kind of recording has failed.

        Parameters
        ----------
        failures
            For each rank, the reasons why recording has stopped, by the kind of recording.
        """
        ranks_of: dict[tuple[str, str], list[int]] = {}
        for rank, reasons in sorted(failures.items()):
            for failure in reasons.items():
                ranks_of.setdefault(failure, []).append(rank)
        self.failures = " ".join(
            f"Recording of the {kind} has stopped on {phrase(ranks)}: {reason}. The cell trains "
            "as without it, and the next cell tries again."
            for (kind, reason), ranks in ranks_of.items()
        )
        if self.failures:
            _log.info("%s", self.failures)
        return bool(self.failures)

    def note_separate(self, training: SeparateTraining) -> None:
        """Set the newest cell without exchanged gradients."""
        self.separate = training
        self._notify()

    def conclude(self, verdict: Verdict) -> None:
        """Set the verdict of the last cell, and store it for views and later kernels."""
        self.verdict = verdict
        self._storage.write_verdict(verdict)
        self._notify()

    def close(self) -> None:
        """Stop receiving and end the run's files; the timings can still be read."""
        self.closed = True
        _log.debug("closing the timings of the run %s", self.path)
        self.clocks.stop_pings()
        if self._inbox is not None:
            self._inbox.close()
        self._storage.close()
        self._running.clear()
        self._notify()
        if self._publisher is not None:
            self._publisher.close()

    # the views

    @property
    def path(self) -> Path | None:
        """The run's folder, for `workbench.open_run`; None without a run."""
        return self._storage.path

    @property
    def remark(self) -> str:
        """Sentences on unusual iterations of the last cell, or an empty string."""
        if self.failures:  # the counts are then meaningless
            return self.failures
        cell, sent = self._ended
        counts = self._store.counts
        unheard = f"{UNHEARD}." if counts.unheard(cell) else ""
        if missing := counts.missing(cell):
            were = "were" if missing > 1 else "was"
            text = f"{missing:,} of the {sum(sent.values()):,} records of the last cell {were} lost"
            return f"{text} on the way to this kernel, and are in no figure. {unheard}".rstrip()
        iterations = {rank: counts.iterations(cell, rank) for rank in sent}
        training = self.separate
        separate = str(training) if training is not None and training.cell == cell else ""
        counted = _count_remark(iterations, any(sent.values()), len(self) > 0)
        remarks = counted, separate, unheard
        return " ".join(filter(None, remarks))

    @property
    def unrecorded(self) -> str:
        """A line on what is not recorded, and how to record it; empty if everything is recorded."""
        texts = []
        if not self.recording:
            texts.append(RECORDING_OFF)
        if self.outdated:
            which = "The last"
            figures = "earlier cells"
            if self.last_recorded:
                which = "An earlier"
                figures = "cells before it"
            again = " Run it again to record it." if self.recording else ""
            texts.append(f"{which} cell was not recorded.{again}")
            if len(self):
                texts.append(f"All figures are of {figures}.")
        return " ".join(texts)

    @property
    def last_recorded(self) -> bool:
        """Whether the user's last cell was recorded; True before the first cell."""
        return not self._unrecorded_cell or self._last_cell != self._unrecorded_cell

    @property
    def outdated(self) -> bool:
        """Whether the user has run a cell without recording since the newest iterations."""
        return self._unrecorded_cell > self.newest_cell

    def iterations_of(self, cell: int) -> int | None:
        """Return the number of iterations of a cell on the rank with the most; None if unknown."""
        if cell <= self._unrecorded_cell:
            return None
        return max((self._store.counts.iterations(cell, rank) for rank in self.vms), default=0)

    def _receive(self, rank: int, message: Message) -> None:
        if isinstance(message, LoggedValues):
            self._store.logged.add(rank, message.check())
        elif isinstance(message, VmLoggedValues):
            for sender, logged in zip(message.ranks, message.check().logged, strict=True):
                self._store.logged.add(sender, logged)
        else:
            self._received.append(_sent(rank, message))

    def _store_received(self) -> None:
        """Store all records that have arrived; storing them one by one would cost more."""
        if not self._received:
            return
        received = self._received
        self._received = []
        self.errors += map(str, self._store.add_all(received))
        self._measure_lag()
        with self._arrived:
            self._arrived.notify_all()
        self._notify()


def _sent(rank: int, message: Message) -> Sent:
    """Return the contents of a message from a rank or from a VM's agent, for `Store.add_all`."""
    if isinstance(message, Layout):
        return (rank,), message.check()
    if isinstance(message, Records):
        return (rank,) * len(message.records), message.records
    if isinstance(message, VmLayout):
        return message.ranks, message.layout.check()
    assert isinstance(message, VmRecords)  # no other message is sent to this inbox
    return message.ranks, message.split()


def _count_remark(iterations: dict[int, int], recorded: bool, earlier: bool) -> str:
    """Return a remark on unusual numbers of iterations by rank, or an empty string.

    `recorded` is whether the ranks have sent any record of the cell, `earlier` whether any cell has
    had iterations.
    """
    by_count: dict[int, list[int]] = {}
    for rank, count in iterations.items():
        by_count.setdefault(count, []).append(rank)
    if len(by_count) > 1:
        counts = ", ".join(
            f"{count} on {phrase(ranks)}" for count, ranks in sorted(by_count.items())
        )
        return f"The ranks ran different numbers of iterations: {counts}."
    if 0 in by_count and recorded:
        remark = (
            "The last cell recorded no iteration (no optimizer.step() ran). Its collectives are in "
            "timings.collectives()."
        )
        return f"{remark} {EARLIER}" if earlier else remark
    return ""
