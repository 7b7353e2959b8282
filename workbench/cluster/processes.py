"""Start and stop the processes of a cluster, and receive the messages of its ranks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster import warm
from workbench.cluster.agents import Agents
from workbench.cluster.controller import STATE_FILE, ControllerProcess
from workbench.cluster.engines import Engines
from workbench.cluster.launchers.placement import kernel_address
from workbench.cluster.options import Options
from workbench.cluster.stuck_ranks import StuckRankMonitor
from workbench.cluster.threads import in_background
from workbench.errors import StartFailed
from workbench.safefiles import write_private
from workbench.wire import detached
from workbench.wire.completion_messages import Attributes
from workbench.wire.profile_messages import ProfileEnded, ProfileStarted
from workbench.wire.prompt_messages import InputRequest
from workbench.wire.rank_messages import (
    CellEnded,
    CellMessage,
    ClockPong,
    Output,
    OutputTaken,
    RankState,
    RendezvousRequest,
)
from workbench.wire.sample_messages import LineSamples
from workbench.wire.transfer_messages import Chunk
from workbench.wire.transport import Transport, transports_to_plain

if TYPE_CHECKING:
    from workbench.timings import Timings
    from workbench.wire import Message


_log = logging.getLogger(__name__)


class ClusterProcesses:
    """Agents, controller and engines of a cluster, and the messages of its ranks.

    Parameters
    ----------
    timings
        Returns the receiver of the ranks' records. First called while the processes start,
        because its imports take time too.
    receive
        Called, in the control channel's thread, with each message of a rank about a cell.
    folder
        The folder of a running cluster, for `attach`.
    progress
        Called, in threads, with the progress of each VM's start.

    Attributes
    ----------
    attachable
        Whether the state file was written, from which another kernel attaches.
    receive_attributes
        Called, in the control channel's thread, with the names of attributes of a rank's object.
    chunk_receivers
        Called, in the control channel's thread, with each `Chunk` of a rank, by the number of the
        running transfer.
    receive_profile
        Called, in the control channel's thread, with each report of a rank about a profile.
    monitor
        Frees the ranks of an earlier kernel's cell while this kernel attaches.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        timings: Callable[[], Timings],
        receive: Callable[[int, CellMessage], None],
        *,
        folder: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._timings = timings
        self._receive = receive
        self.attachable = False
        self._detached = False
        self.monitor: StuckRankMonitor | None = None
        self.chunk_receivers: dict[int, Callable[[int, Chunk], None]] = {}
        self.receive_profile: Callable[[int, ProfileStarted | ProfileEnded], None] = _ignore
        self.receive_attributes: Callable[[Attributes], None] = lambda _: None
        self._controller = ControllerProcess(folder)
        self.agents = Agents(
            options,
            lambda text: None if self.engines.ranks else progress(text),
        )
        self.engines = Engines(name, self.agents, self._controller, timings, self._save_change)

    def start(self) -> None:
        """Start the ranks; after a failure, call `stop`.

        Raise `StartFailed` if a VM does not answer, or a rank did not start.
        """
        engines = self.engines
        began = time.monotonic()
        self.agents.spawn()
        options = self.agents.options
        if options.hosts is None:
            spawn = detached.spawn if options.cold else warm.spawner(None)
            self._controller.start(engines.address, options.keep_s, spawn)
        # this import runs while the processes start, which takes longer
        from workbench.wire import Inbox

        if options.hosts is not None:
            self.agents.wait_until_greeted()
            engines.address = kernel_address(self.agents.all)
            self._controller.start(engines.address, options.keep_s)
        self._timings().listen(engines.address)
        inbox = engines.inbox = Inbox(self._dispatch, interface=engines.address, name="control")
        self.agents.wait_until_greeted()
        connection = self._controller.wait(options.start_timeout_s)
        engines.connect(connection)
        self.agents.wait_until_loaded()
        engines.start(self.agents.options.n)
        self._timings().clocks.start_pings(inbox.send_later, lambda: len(engines.ranks))
        _log.info(
            "%s: started %d ranks on %d VMs in %.1f s",
            *(self.name, len(engines.ranks), len(self.agents.all), time.monotonic() - began),
        )

    def attach(self, saved: dict[str, Any]) -> None:
        """Attach to the ranks of an earlier kernel, which may still run a cell.

        Raise `StartFailed` if they have ended.
        """
        from workbench.wire import Inbox

        address = saved["address"]
        engines = self.engines
        self._timings().listen(address, saved["timings"])
        inbox = Inbox(self._dispatch, interface=address, name="control", state=saved["control"])
        engines.inbox = inbox
        self._controller.attach()
        self.attachable = True
        self.agents.attach(saved["agents"])
        engines.address = address
        engines.restore(saved["engines"])
        self._timings().clocks.start_pings(inbox.send_later, lambda: len(engines.ranks))
        self._keep_timings()

    def save(self) -> None:
        """Write the ranks to the run, and the state file if the cluster is kept."""
        self._keep_timings()
        self._save()

    def _save_change(self) -> None:
        """Write the state file before a change of the ranks that this kernel may not finish.

        Before the end of the start, no file is written, because no kernel can attach.
        """
        if self.engines.wanted is not None:
            self._save()

    def set_recording(self, *, on: bool) -> None:
        """Switch the recording of the next cells on or off, also for cells of another kernel.

        Raise `StartFailed` if the state file could not be written. Then nothing has changed.
        """
        timings = self._timings()
        before = timings.recording
        timings.record(on=on)
        try:
            self._save()
        except StartFailed:
            timings.record(on=before)
            raise

    def _save(self) -> None:
        inbox = self.engines.inbox
        if self.agents.options.keep_s is None or inbox is None:
            return
        saved = {
            "name": self.name,
            "address": self.engines.address,
            "options": self.agents.options.to_plain(),
            "agents": self.agents.to_state(),
            "engines": self.engines.to_saved(),
            "control": inbox.to_state(),
            "timings": self._timings().to_state(),
        }
        save_state(self._controller.folder, saved)
        self.attachable = True

    def detach(self) -> None:
        """Disconnect from a kept cluster; its processes continue to run for the next kernel."""
        _log.info("%s: detaching from its processes", self.name)
        self._detached = True
        self.engines.close()
        for agent in self.agents.all:
            agent.detach()
        self._controller.detach()
        self._close()

    def stop(self) -> None:
        """End every process; the timings are kept. May be called twice.

        A start or a change of the ranks in another thread fails at its next step.
        """
        _log.info("%s: ending its processes", self.name)
        self.engines.interrupted.set()
        try:
            self.engines.close()
            self.agents.close()
            self._controller.stop()
        finally:
            self._close()

    def end_late_processes(self) -> None:
        """Repeat the earlier `stop` or `detach`, for processes that were started since."""
        (self.detach if self._detached else self.stop)()

    def _dispatch(self, rank: int, message: Message) -> None:
        received_ns = time.perf_counter_ns()
        match message:
            case ClockPong():
                self._timings().clocks.pong(rank, message, received_ns)
            case Chunk():
                self.chunk_receivers.get(message.transfer, _ignore)(rank, message)
            case ProfileStarted() | ProfileEnded():
                self.receive_profile(rank, message)
            case RankState() if self.monitor is not None:
                self.monitor.answer(rank, message)
            case Attributes():
                self.receive_attributes(message)
            case LineSamples():
                self._timings().line_samples[rank] = message
            case RendezvousRequest():
                in_background(partial(self.engines.backend.serve_init, rank))
            case Output() | CellEnded() | RankState() | InputRequest():
                if isinstance(message, CellEnded):
                    self._keep_transports(rank, message.transports)
                self._receive(rank, message)

    def _keep_transports(self, rank: int, transports: tuple[Transport, ...]) -> None:
        """Store the transports of a rank's collectives; NCCL connects when it is first used."""
        stored = self.engines.backend.transports
        if stored.get(rank, ()) != transports:
            stored[rank] = transports
            self._keep_timings()

    def _keep_timings(self) -> None:
        options = self.agents.options
        self._timings().keep(
            self.name,
            [asdict(info) for info in self.engines.ranks],
            folder=options.runs,
            kept_s=options.keep_s,
            transports=transports_to_plain(self.engines.backend.transports),
            snapshots={agent.name: agent.facts.snapshot for agent in self.agents.all},
        )

    def _close(self) -> None:
        self._timings().close()
        if self.engines.inbox is not None:
            self.engines.inbox.close()


def acknowledge(send: Callable[[int, Message], None], rank: int, message: Message) -> None:
    """Confirm output to a rank that asks for it, so that it can write more."""
    if isinstance(message, Output) and message.total_characters is not None:
        send(rank, OutputTaken(message.cell, message.total_characters))


def _ignore(_rank: int, _message: Message) -> None:
    """Ignore a late message, because its receiver no longer waits."""


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state that another kernel needs to attach; only this user can read the file.

    Raise `StartFailed` if it cannot be written. An earlier file then remains.
    """
    try:
        write_private(folder / STATE_FILE, json.dumps(state))
    except OSError as error:
        raise StartFailed(
            f"{folder}: cannot write there what another kernel needs to attach "
            f"({error.strerror}). Make room there, or start the cluster without --keep."
        ) from error
