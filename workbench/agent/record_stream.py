"""Merges the records of this VM's ranks into one stream, in a process of its own.

The kernel then has one socket and one message per VM instead of one per rank. The process is
forked from the agent, as ranks are: the agent itself must have no thread when it forks, and
ZeroMQ has one.
"""

from __future__ import annotations

import contextlib
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

VARIABLE = "WORKBENCH_RECORDS"
"""The environment variable with the endpoint to which a rank sends its records."""
NAME = "record-stream"
"""The name of the process, as ps shows it."""
_GATHER_MS = 5
"""How long after the first message others are waited for: all ranks send at the same time."""
_MAX_RECORDS = 10_000
_POLL_MS = 250
_RESTART_S = 5.0
"""Least time between two starts of the process, which pause the agent's other work."""
_UNSENT_MESSAGES = 100
"""How many messages wait for the kernel; then ranks keep their records, and count lost ones."""


class RecordStream:
    """The process that merges records; started with the first rank that has an address for it."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._address: Address | None = None
        self._pid: int | None = None
        self._started = 0.0

    def start(self, address: Address, inherited: list[int]) -> dict[str, str]:
        """Start the process if it does not run; return the environment of a rank that uses it.

        Parameters
        ----------
        address
            The kernel's address for this VM; an earlier one is kept.
        inherited
            Descriptors of the agent, which the process closes.
        """
        path = self._folder.path / "records.sock"
        if len(os.fsencode(path)) > PATH_BYTES:
            return {}  # the rank connects to the kernel
        address = self._address or address
        if self._pid is None:
            agent, self._started = os.getpid(), time.monotonic()
            sys.stderr.flush()
            self._pid = os.fork()
            if self._pid == 0:
                _become_stream(f"ipc://{path}", address, agent, inherited)
        self._address = address
        return {VARIABLE: f"ipc://{path}"}

    def restart(self, inherited: list[int]) -> None:
        """Start the process again after it has ended; the ranks connect to it again."""
        if self._address is not None:
            self.start(self._address, inherited)

    def has_ended(self) -> bool:
        """Whether the process has ended without `stop`, and can be started again."""
        if self._pid is not None and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = None
        if self._pid is not None or self._address is None:
            return False
        return time.monotonic() - self._started > _RESTART_S

    def stop(self) -> None:
        """End the process."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._pid = self._address = None


def _become_stream(endpoint: str, address: Address, agent: int, inherited: list[int]) -> None:
    """Merge records in this new process until the agent has ended; never returns."""
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


def merge(endpoint: str, address: Address, goes_on: Any) -> None:
    """Receive messages of ranks at `endpoint`, and send them merged to `address`.

    Parameters
    ----------
    goes_on
        Called from time to time; this returns when it returns False.
    """
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ranks, kernel = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    ranks.router_handover = True
    kernel.sndhwm = _UNSENT_MESSAGES
    kernel.sndtimeo = _POLL_MS
    ranks.linger = kernel.linger = 0
    try:
        ranks.bind(endpoint)
        address.connect(kernel)
        while goes_on():
            for message in _gather(ranks):
                frames = message.encode()
                while goes_on():
                    try:
                        kernel.send_multipart(frames)
                        break
                    except zmq.Again:
                        continue
    finally:
        context.destroy(linger=0)


def _gather(ranks: Any) -> Iterator[Message]:
    """Yield what has arrived from all ranks, merged."""
    merged = _Merged()
    wait_ms, until = _POLL_MS, float("inf")
    while ranks.poll(wait_ms):
        identity, *frames = ranks.recv_multipart()
        if identity.isdigit():
            yield from merged.add(int(identity), frames)
        until = min(until, time.monotonic() + _GATHER_MS / 1e3)
        wait_ms = max(0, round((until - time.monotonic()) * 1e3))
        if time.monotonic() >= until or len(merged.records) >= _MAX_RECORDS:
            break
    yield from merged.take()


class _Merged:
    """Logged values, layouts and records that are sent next, in this order."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._ranks: list[int] = []
        self._layouts: dict[tuple[bytes, ...], tuple[Layout, list[int]]] = {}
        self._logged: list[tuple[int, LoggedValues]] = []

    def add(self, rank: int, frames: list[bytes]) -> Iterator[Message]:
        """Add a rank's message; yield what must be sent before it."""
        known = self._layouts.get(tuple(frames))
        message = Message.decode(frames) if known is None else known[0]
        if isinstance(message, Layout):
            if rank in self._ranks:  # its number may be that of the layout of these records
                yield from self.take()
            self._layouts.setdefault(tuple(frames), (message, []))[1].append(rank)
        elif isinstance(message, Records):
            self.records += message.records
            self._ranks += [rank] * len(message.records)
        elif isinstance(message, LoggedValues):
            self._logged.append((rank, message))

    def take(self) -> Iterator[Message]:
        """Yield the merged messages, and begin again."""
        if self._logged:
            yield VmLoggedValues(*map(tuple, zip(*self._logged, strict=True)))
            self._logged = []
        for layout, ranks in self._layouts.values():
            yield VmLayout(tuple(ranks), layout)
        if self.records:
            yield VmRecords.of(self._ranks, self.records)
        self.records, self._ranks, self._layouts = [], [], {}
