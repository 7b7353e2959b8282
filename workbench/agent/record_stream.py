"""Merge the records of this VM's ranks into one stream, in a separate process.

The kernel then needs one socket and one message per VM instead of one per rank. Like the ranks, the
process is forked from the agent. The agent cannot do this itself: ZeroMQ starts a thread, and the
agent must have no other thread when it forks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.agent.folder import RankFolder
from workbench.wire.address import Address
from workbench.wire.detached import PATH_BYTES
from workbench.wire.layout import Layout
from workbench.wire.logged_values import LoggedValues, VmLoggedValues
from workbench.wire.message import Message
from workbench.wire.rank_messages import Records
from workbench.wire.vm_messages import VmLayout, VmRecords

_log = logging.getLogger(__name__)

VARIABLE = "WORKBENCH_RECORDS"
"""Environment variable with the endpoint to which a rank sends its records."""
NAME = "record-stream"
"""The name of the process that ``ps`` shows."""
_GATHER_MS = 5
"""Time to wait for further messages after the first: all ranks send at the same time."""
_MAX_RECORDS = 10_000
_POLL_MS = 250
_MIN_RESTART_S = 5.0
"""Minimum time between two starts of the process, because a start pauses the agent's work."""
_MAX_UNSENT_MESSAGES = 100
"""Maximum number of messages that wait for the kernel.

If more wait, the ranks keep their records, and count the records that they lose.
"""


class RecordStream:
    """The process that merges records. The first rank with an address for its records starts it."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._address: Address | None = None
        self._pid: int | None = None
        self._started_s = 0.0

    def start(self, address: Address, inherited: list[int]) -> dict[str, str]:
        """Start the process if it does not run.

        Return the environment variables of a rank that uses it. They are empty if the path of the
        socket is too long.

        Parameters
        ----------
        address
            The address of the kernel for this VM. An address from an earlier call takes precedence.
        inherited
            Descriptors of the agent. The process closes them.
        """
        path = self._folder.path / "records.sock"
        if len(os.fsencode(path)) > PATH_BYTES:
            return {}  # the rank then connects to the kernel itself
        address = self._address or address
        if self._pid is None:
            agent = os.getpid()
            self._started_s = time.monotonic()
            sys.stderr.flush()
            self._pid = os.fork()
            if self._pid == 0:
                _become_stream(f"ipc://{path}", address, agent, inherited)
            _log.info("Started the record stream: process %d", self._pid)
        self._address = address
        return {VARIABLE: f"ipc://{path}"}

    def restart(self, inherited: list[int]) -> None:
        """Start the process again after it has ended. The ranks reconnect to it."""
        if self._address is not None:
            self.start(self._address, inherited)

    def has_ended(self) -> bool:
        """Return whether the process has ended without `stop`, and may be started again now."""
        if self._pid is not None and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = None
        if self._pid is not None or self._address is None:
            return False
        return time.monotonic() - self._started_s > _MIN_RESTART_S

    def stop(self) -> None:
        """End the process."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._pid = self._address = None


def _become_stream(endpoint: str, address: Address, agent: int, inherited: list[int]) -> None:
    """Merge records in this new process until the agent has ended, and exit then."""
    try:
        os.setsid()
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(NAME)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        merge(endpoint, address, lambda: os.getppid() == agent)
    except BaseException:  # noqa: BLE001 - the agent's code must not continue in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def merge(endpoint: str, address: Address, should_continue: Any) -> None:
    """Receive messages of ranks at `endpoint`, and send them merged to `address`.

    Parameters
    ----------
    endpoint
        The ZeroMQ endpoint of the ranks.
    address
        The address of the kernel.
    should_continue
        Called from time to time. Merging ends once it returns False.
    """
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ranks = context.socket(zmq.ROUTER)
    kernel = context.socket(zmq.DEALER)
    ranks.router_handover = True
    kernel.sndhwm = _MAX_UNSENT_MESSAGES
    kernel.sndtimeo = _POLL_MS
    ranks.linger = kernel.linger = 0
    try:
        ranks.bind(endpoint)
        address.connect(kernel)
        while should_continue():
            for message in _gather(ranks):
                frames = message.encode()
                while should_continue():
                    try:
                        kernel.send_multipart(frames)
                        break
                    except zmq.Again:
                        continue
    finally:
        context.destroy(linger=0)


def _gather(ranks: Any) -> Iterator[Message]:
    """Yield the merged messages that have arrived from all ranks."""
    merger = _MessageMerger()
    wait_ms = _POLL_MS
    deadline = float("inf")
    while ranks.poll(wait_ms):
        identity, *frames = ranks.recv_multipart()
        if identity.isdigit():
            yield from merger.add(int(identity), frames)
        deadline = min(deadline, time.monotonic() + _GATHER_MS / 1e3)
        wait_ms = max(0, round((deadline - time.monotonic()) * 1e3))
        if time.monotonic() >= deadline or len(merger.records) >= _MAX_RECORDS:
            break
    yield from merger.take()


class _MessageMerger:
    """Collects messages of ranks. `take` yields logged values, then layouts, then records."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._ranks: list[int] = []
        self._layouts: dict[tuple[bytes, ...], tuple[Layout, list[int]]] = {}
        self._logged: list[tuple[int, LoggedValues]] = []

    def add(self, rank: int, frames: list[bytes]) -> Iterator[Message]:
        """Add a rank's message, and yield earlier messages that must be sent before it."""
        layout_and_ranks = self._layouts.get(tuple(frames))
        message = Message.decode(frames) if layout_and_ranks is None else layout_and_ranks[0]
        if isinstance(message, Layout):
            if rank in self._ranks:  # these records may use the number of an earlier layout
                yield from self.take()
            self._layouts.setdefault(tuple(frames), (message, []))[1].append(rank)
        elif isinstance(message, Records):
            self.records += message.records
            self._ranks += [rank] * len(message.records)
        elif isinstance(message, LoggedValues):
            self._logged.append((rank, message))

    def take(self) -> Iterator[Message]:
        """Yield the merged messages, and empty the merger."""
        if self._logged:
            yield VmLoggedValues(*map(tuple, zip(*self._logged, strict=True)))
            self._logged = []
        for layout, ranks in self._layouts.values():
            yield VmLayout(tuple(ranks), layout)
        if self.records:
            yield VmRecords.of(self._ranks, self.records)
        self.records = []
        self._ranks = []
        self._layouts = {}
