"""Connect the kernel and an agent if only the agent's VM can open the connection.

``python -m workbench.agent.tunnel``, on the agent's VM, starts the agent and connects to the
kernel's machine. It reconnects until the agent has ended. It reads `_TunnelSettings` as JSON from
standard input, prints ``ready`` and its public key, or an error, and continues in the background.

``python -m workbench.agent.tunnel PORT PUBLIC_KEY PATIENCE_S``, on the kernel's machine, waits
PATIENCE_S seconds for a connection from the process with this public key. Then it copies between
this connection and its standard input, which is a socket. The environment variable `TUNNEL` has the
keys and the address of this process.

Both ends are CURVE sockets of ZeroMQ. Their secret keys do not leave their machines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TypedDict

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from workbench.wire.detached import (
    DetachedProcess,
    agent_log_tail,
    connect_agent,
    remove_folder,
    start_agent,
)
from workbench.wire.foreign_engine import TUNNEL, start_ticks

_DOMAIN = "workbench"
_POLL_MS = 250
_HEARTBEAT_MS = 1000
_MAX_SILENCE_MS = 4000
_MAX_RECONNECT_MS = 1000
_LINGER_MS = 500
_ENGINE_POLL_S = 0.5
_MAX_END_S = 1.0


class _TunnelSettings(TypedDict):
    """The JSON input of the process on the agent's VM.

    Attributes
    ----------
    folder, grace_s, first_s
        Arguments of the agent.
    cores
        The cores that the ranks may use.
    environment
        Variables to set, by name; None removes a variable.
    engines
        The process id and the start time (`start_ticks`) of each engine. The agent ends when all
        of them have ended.
    why
        The reason that the kernel gets when the agent has ended because its engines have ended.
    endpoint, server_key
        The kernel's endpoint and its public key.
    """

    folder: str
    grace_s: float
    first_s: float
    cores: list[int]
    environment: dict[str, str | None]
    engines: list[tuple[int, int]]
    why: str
    endpoint: str
    server_key: str


# Functions for the process on the kernel's machine.


def accept(port: str, client: str, patience_s: float) -> int:
    """Accept one connection, copy until it ends, and return the exit status.

    Parameters
    ----------
    port
        The port at which to listen.
    client
        The public key of the only process that may connect.
    patience_s
        How many seconds to wait for a connection.
    """
    keys = json.loads(os.environ.pop(TUNNEL))
    kernel = socket.socket(fileno=os.dup(0))
    parent = os.getppid()
    endpoint = f"tcp://{keys['address']}:{port}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    provider = SimpleNamespace(callback=lambda _, key: key == client.encode())
    authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=provider)
    tunnel = _socket(context, keys["public"].encode(), keys["secret"].encode())
    tunnel.curve_server = True
    tunnel.zap_domain = _DOMAIN.encode()
    monitor = tunnel.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    code = 0
    try:
        tunnel.bind(endpoint)
        deadline = time.monotonic() + patience_s
        while not monitor.poll(_POLL_MS):
            if time.monotonic() > deadline or os.getppid() != parent:
                sys.stderr.write(f"nothing has connected to {endpoint}\n")
                return 1
        monitor.recv_multipart()
        _copy(tunnel, monitor, kernel)
    except zmq.ZMQError as error:
        is_in_use = error.errno == errno.EADDRINUSE
        reason = "used by another process. End it; `ss -ltnp` shows it" if is_in_use else error
        sys.stderr.write(f"{endpoint}: {reason}\n")
        code = 1
    finally:
        authenticator.stop()
        _close(tunnel, monitor)
        context.term()
    return code


# Functions for the process on the agent's VM.


def serve() -> int:
    """Start the agent, continue in the background, and return the exit status."""
    settings: _TunnelSettings = json.load(sys.stdin)
    if os.fork():  # the engine waits only until this process exits
        return 0
    os.setsid()
    for signal_number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, settings["cores"])
    for name, value in settings["environment"].items():
        os.environ.pop(name, None)
        os.environ.update({name: value} if value is not None else {})
    folder = Path(settings["folder"])
    try:
        process, connection = start_agent(
            folder, settings["grace_s"], os.getpid(), settings["first_s"]
        )
    except OSError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    connection.close()
    public, secret = zmq.curve_keypair()
    sys.stdout.write(f"ready {public.decode()}\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    end_reasons: list[str] = []
    threading.Thread(
        target=_end_with_engines, args=(settings, process, end_reasons), daemon=True
    ).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    while process.poll() is None:
        tunnel = _socket(context, public, secret)
        tunnel.curve_serverkey = settings["server_key"].encode()
        _connect_once(tunnel, settings, process, end_reasons)
    remove_folder(folder)
    context.term()
    return 0


def _end_with_engines(
    settings: _TunnelSettings, process: DetachedProcess, end_reasons: list[str]
) -> None:
    """End the agent once all its engines have ended, and append the reason to `end_reasons`."""
    while any(start_ticks(pid) == began for pid, began in settings["engines"]):
        time.sleep(_ENGINE_POLL_S)
    end_reasons.append(settings["why"])
    process.kill()  # the ranks end with their agent


def _connect_once(
    tunnel: zmq.Socket[bytes],
    settings: _TunnelSettings,
    process: DetachedProcess,
    end_reasons: list[str],
) -> None:
    """Wait for a kernel, and connect it to the agent until one of them closes the connection."""
    folder = Path(settings["folder"])
    tunnel.reconnect_ivl_max = _MAX_RECONNECT_MS
    monitor = tunnel.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        tunnel.connect(settings["endpoint"])
        while not tunnel.poll(_POLL_MS):
            if process.poll() is not None:
                return
        while monitor.poll(0):  # events of an earlier kernel that has sent nothing
            monitor.recv_multipart()
        with contextlib.suppress(OSError), connect_agent(folder) as agent:
            if not _copy(tunnel, monitor, agent):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_MAX_END_S)
            from workbench.wire.agent_messages import AgentEnded, encode

            ended = AgentEnded(process.poll(), agent_log_tail(folder), "".join(end_reasons))
            _send(tunnel, encode(ended))
        _send(tunnel, b"")
    finally:
        _close(tunnel, monitor)


# Functions for both processes.


def _socket(
    context: zmq.Context[zmq.Socket[bytes]], public: bytes, secret: bytes
) -> zmq.Socket[bytes]:
    """Return a new CURVE socket with these keys."""
    tunnel = context.socket(zmq.PAIR)
    tunnel.curve_publickey = public
    tunnel.curve_secretkey = secret
    tunnel.linger = _LINGER_MS
    tunnel.sndhwm = 0
    tunnel.rcvhwm = 0
    tunnel.heartbeat_ivl = _HEARTBEAT_MS
    tunnel.heartbeat_timeout = _MAX_SILENCE_MS
    return tunnel


def _close(tunnel: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    tunnel.disable_monitor()
    monitor.close()
    tunnel.close()


def _send(tunnel: zmq.Socket[bytes], data: bytes) -> bool:
    """Send to the other end, and return whether it is still connected."""
    try:
        tunnel.send(data, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _copy(tunnel: zmq.Socket[bytes], monitor: zmq.Socket[bytes], stream: socket.socket) -> bool:
    """Copy in both directions until one side closes.

    Return True if `stream` was closed, and False if the tunnel was closed. Each process sends an
    empty message before it closes the tunnel.
    """
    poller = zmq.Poller()
    for source in (tunnel, monitor, stream):
        poller.register(source, zmq.POLLIN)
    while True:
        ready = [source for source, _ in poller.poll()]
        try:
            if stream.fileno() in ready:
                data = stream.recv(1 << 16)
                if not data:
                    return True
                if not _send(tunnel, data):
                    return False
            if tunnel in ready:
                data = tunnel.recv()
                if not data:
                    return False
                stream.sendall(data)
                continue  # read all messages before the end of the connection
        except OSError:  # only of the stream: ZeroMQ raises ZMQError
            return True
        if monitor in ready and _has_disconnected(monitor):
            return False


def _has_disconnected(monitor: zmq.Socket[bytes]) -> bool:
    event = parse_monitor_message(monitor.recv_multipart())["event"]
    return bool(event == zmq.EVENT_DISCONNECTED)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(serve())
    sys.exit(accept(sys.argv[1], sys.argv[2], float(sys.argv[3])))
