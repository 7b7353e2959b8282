"""Connects the kernel and an agent whose machine connects to the kernel's, but not the reverse.

``python -m workbench.agent.tunnel``, on the agent's machine, starts the agent and connects to the
kernel's machine, again and again until the agent has ended. It reads from standard input what
`_Given` describes, prints ``ready`` and its public key, or an error, and goes on in the background.

``python -m workbench.agent.tunnel PORT PUBLIC_KEY PATIENCE_S``, on the kernel's machine, waits so
long for a connection from the one with this key, and copies between it and its standard input,
which is a socket. The environment variable `TUNNEL` has its own keys, and its address.

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
_SILENCE_MS = 4000
_AGAIN_MS = 1000
_LINGER_MS = 500
_ENGINES_S = 0.5
_END_S = 1.0


class _Given(TypedDict):
    """What the agent's end reads.

    `folder`, `grace_s` and `first_s` are the agent's, `cores` those that its ranks may use, and
    `environment` has variables to set, or to remove. `engines` has the process id and the begin
    (`start_ticks`) of each process without which the agent ends, and `why` the reason that is
    reported then. `endpoint` and `server_key` are the kernel's.
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


# on the kernel's machine


def accept(port: str, client: str, patience_s: float) -> int:
    """Carry one connection to its end; return the exit status."""
    keys = json.loads(os.environ.pop(TUNNEL))
    kernel, parent = socket.socket(fileno=os.dup(0)), os.getppid()
    endpoint = f"tcp://{keys['address']}:{port}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    known = ThreadAuthenticator(context)
    known.start()
    provider = SimpleNamespace(callback=lambda _, key: key == client.encode())
    known.configure_curve_callback(domain=_DOMAIN, credentials_provider=provider)
    tunnel = _socket(context, keys["public"].encode(), keys["secret"].encode())
    tunnel.curve_server, tunnel.zap_domain = True, _DOMAIN.encode()
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
        _carry(tunnel, monitor, kernel)
    except zmq.ZMQError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = "used by another process. End it; `ss -ltnp` shows it" if in_use else error
        sys.stderr.write(f"{endpoint}: {why}\n")
        code = 1
    finally:
        known.stop()
        _close(tunnel, monitor)
        context.term()
    return code


# on the agent's machine


def serve() -> int:
    """Start the agent and go on in the background; return the exit status."""
    given: _Given = json.load(sys.stdin)
    if os.fork():  # the engine that has started this process waits only for its first part
        return 0
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, given["cores"])
    for name, text in given["environment"].items():
        os.environ.pop(name, None)
        os.environ.update({name: text} if text is not None else {})
    folder = Path(given["folder"])
    try:
        process, connection = start_agent(folder, given["grace_s"], os.getpid(), given["first_s"])
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
    why: list[str] = []
    threading.Thread(target=_follow, args=(given, process, why), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    while process.poll() is None:
        tunnel = _socket(context, public, secret)
        tunnel.curve_serverkey = given["server_key"].encode()
        _connect_once(tunnel, given, process, why)
    remove_folder(folder)
    context.term()
    return 0


def _follow(given: _Given, process: DetachedProcess, why: list[str]) -> None:
    """End the agent when all of its engines have ended."""
    while any(start_ticks(pid) == began for pid, began in given["engines"]):
        time.sleep(_ENGINES_S)
    why.append(given["why"])
    process.kill()  # its ranks end with it


def _connect_once(
    tunnel: zmq.Socket[bytes], given: _Given, process: DetachedProcess, why: list[str]
) -> None:
    """Wait for a kernel, and connect it to the agent until either has closed the connection."""
    folder = Path(given["folder"])
    tunnel.reconnect_ivl_max = _AGAIN_MS
    monitor = tunnel.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        tunnel.connect(given["endpoint"])
        while not tunnel.poll(_POLL_MS):
            if process.poll() is not None:
                return
        while monitor.poll(0):  # of an earlier kernel, which has sent nothing
            monitor.recv_multipart()
        with contextlib.suppress(OSError), connect_agent(folder) as agent:
            if not _carry(tunnel, monitor, agent):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            from workbench.wire.agent_messages import AgentEnded, encode

            ended = AgentEnded(process.poll(), agent_log_tail(folder), "".join(why))
            _send(tunnel, encode(ended))
        _send(tunnel, b"")
    finally:
        _close(tunnel, monitor)


# on both


def _socket(
    context: zmq.Context[zmq.Socket[bytes]], public: bytes, secret: bytes
) -> zmq.Socket[bytes]:
    tunnel = context.socket(zmq.PAIR)
    tunnel.curve_publickey, tunnel.curve_secretkey = public, secret
    tunnel.linger, tunnel.sndhwm, tunnel.rcvhwm = _LINGER_MS, 0, 0
    tunnel.heartbeat_ivl, tunnel.heartbeat_timeout = _HEARTBEAT_MS, _SILENCE_MS
    return tunnel


def _close(tunnel: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    tunnel.disable_monitor()
    monitor.close()
    tunnel.close()


def _send(tunnel: zmq.Socket[bytes], data: bytes) -> bool:
    """Send to the other end; return whether it is still connected."""
    try:
        tunnel.send(data, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _carry(tunnel: zmq.Socket[bytes], monitor: zmq.Socket[bytes], stream: socket.socket) -> bool:
    """Copy in both directions; return whether the stream was closed, and not the tunnel.

    An empty message is sent before this end closes the tunnel.
    """
    poller = zmq.Poller()
    for one in (tunnel, monitor, stream):
        poller.register(one, zmq.POLLIN)
    while True:
        ready = [one for one, _ in poller.poll()]
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
                continue  # what arrived before the end of the connection is read first
        except OSError:  # of the stream: an error of ZeroMQ is another
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
