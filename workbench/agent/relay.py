"""Connect a kernel on another machine to the agent of this VM.

``python -m workbench.agent.relay FOLDER [GRACE_S [stay]]``

A launcher runs the relay on the VM, for example over ssh. The relay copies its standard input to
the agent's socket in FOLDER, and the agent's messages to its standard output. The agent keeps
running when the relay ends. With GRACE_S, the relay first creates the folder and starts the agent.
With ``stay``, the relay ends after the agent, because some launchers kill the remaining processes
of a task when its first process has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from workbench.wire.detached import (
    DetachedProcess,
    agent_log_tail,
    connect_agent,
    remove_folder,
    start_agent,
)

_MAX_END_S = 1.0


def main() -> None:
    """Copy in both directions until either end is closed."""
    folder = Path(sys.argv[1])
    stay = "stay" in sys.argv[3:]
    process: DetachedProcess | None = None
    first = b""
    try:
        if len(sys.argv) > 2:
            process, agent = start_agent(folder, float(sys.argv[2]))
            if stay:  # the agent gets the same signal, and ends the ranks
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            # Connect only after the kernel has sent something. The agent drops its connection in
            # favour of a new one, so a relay that was slow to start and has lost its kernel must
            # not replace a newer relay.
            first = os.read(0, 1 << 16)
            if not first:
                return
            agent = connect_agent(folder)
    except OSError as error:
        _report_end(None, folder, str(error))
        return
    with agent:
        with contextlib.suppress(OSError):  # the agent has closed; its last messages are relayed
            agent.sendall(first)
        agent_closed = _relay(agent)
    # If another relay has started the agent, the next relay detects whether it still runs.
    if agent_closed and process is not None:
        # If the agent still runs, it has closed only this connection.
        with contextlib.suppress(subprocess.TimeoutExpired):
            _report_end(process.wait(_MAX_END_S), folder)
    if stay and process is not None:
        process.wait()
        remove_folder(folder)


def _relay(agent: socket.socket) -> bool:
    """Copy in both directions until one side closes; return whether the agent has closed."""
    while True:
        ready, _, _ = select.select([0, agent.fileno()], [], [])
        if agent.fileno() in ready:
            try:
                data = agent.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return True
            if not _write(data):
                return False
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return False
            # If the agent has closed the connection, its last messages are read next.
            with contextlib.suppress(OSError):
                agent.sendall(data)


def _write(data: bytes) -> bool:
    """Write to the kernel, and return whether it is still connected."""
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return False
    return True


def _report_end(code: int | None, folder: Path, reason: str = "") -> None:
    """Tell the kernel that the agent has ended, with the end of its log or the reason."""
    from workbench.wire.agent_messages import AgentEnded, encode  # slow, and not needed to connect

    _write(encode(AgentEnded(code, agent_log_tail(folder) or reason)))
    remove_folder(folder)


if __name__ == "__main__":
    main()
