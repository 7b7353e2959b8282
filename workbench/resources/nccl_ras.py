"""Read what NCCL's RAS subsystem (2.24 and newer) reports about the communicators of a job.

Each process that has initialized NCCL has a RAS thread; the first one on a VM serves text on a TCP
port (NVIDIA's documentation: NCCL, troubleshooting, RAS). The answer describes the whole job.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from workbench.resources.unknown import Unknown

_log = logging.getLogger(__name__)

VARIABLE = "NCCL_RAS_ADDR"
DEFAULT = "localhost:28028"
"""NCCL's default of NCCL_RAS_ADDR."""
MAX_BYTES = 4 << 20
_PROTOCOL = 2
"""The version that this client offers. The commands used here exist in all versions."""
_COLLECT_S = 2
"""How long NCCL may wait for other processes, in seconds."""
_LIMIT_S = 4.0
_CHUNK = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_MAX_DEPTH = 64
"""JSON that is nested deeper is kept as text: recursive code would fail on it."""


@dataclass(frozen=True)
class RasStatus:
    """NCCL's report.

    Attributes
    ----------
    address
        The address of the server.
    protocol
        The version in the server's greeting.
    format
        ``"json"`` (NCCL 2.28.7 or newer), or ``"text"``.
    status
        The parsed JSON, or the text.
    """

    address: str
    protocol: str
    format: str
    status: Any


def read_ras(address: str | None = None, limit_s: float = _LIMIT_S) -> RasStatus | Unknown:
    """Return NCCL's report, or `Unknown` if no process of this VM serves it.

    Parameters
    ----------
    address
        Host and port; by default the value of NCCL_RAS_ADDR.
    limit_s
        Time limit in seconds.
    """
    endpoint = address or os.environ.get(VARIABLE) or DEFAULT
    host, _, port = endpoint.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return Unknown(f"{VARIABLE}={endpoint!r}: not host:port")
    deadline = time.monotonic() + limit_s
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), 1.0) as server:
            status = _read(_Lines(server, deadline), endpoint)
            _log.debug(
                "NCCL's RAS at %s answered in %s, protocol %s",
                endpoint,
                status.format,
                status.protocol,
            )
            return status
    except ConnectionRefusedError:
        return Unknown(
            f"nothing listens on {endpoint}: no process of this VM runs NCCL 2.24 or newer, or "
            "NCCL_RAS_ENABLE=0 is set"
        )
    except TimeoutError:
        return Unknown(f"{endpoint} did not answer within {limit_s:g} s")
    except (OSError, ValueError) as error:
        return Unknown(f"{endpoint}: {getattr(error, 'strerror', None) or error}")


def _read(server: _Lines, address: str) -> RasStatus:
    greeting = server.request(f"CLIENT PROTOCOL {_PROTOCOL}")
    words = greeting.split()
    if words[:2] != ["SERVER", "PROTOCOL"]:
        raise ValueError(f"answered {greeting[:80]!r}, which is not NCCL's RAS protocol")
    server.request(f"TIMEOUT {_COLLECT_S}")
    as_json = server.request("SET FORMAT json").upper() == "OK"
    server.send("VERBOSE STATUS")
    text = server.read_rest()
    if not text.strip():
        raise ValueError("closed the connection without a status")
    if as_json:
        try:
            status = json.loads(text)
        except (ValueError, RecursionError):  # cut off, such as at the size limit, or nested deeply
            pass
        else:
            if not _is_deep(status):
                return RasStatus(address, words[-1], "json", status)
    return RasStatus(address, words[-1], "text", text)


def _is_deep(value: Any) -> bool:
    """Return whether JSON values are nested more than `_MAX_DEPTH` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        parents = [value.values() if isinstance(value, dict) else value for value in level]
        level = [child for parent in parents for child in parent if isinstance(child, dict | list)]
        if not level:
            return False
    return True


class _Lines:
    """Lines of text over a connection, until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._read = b""

    def request(self, command: str) -> str:
        """Send a command, and return the line that answers it."""
        self.send(command)
        while b"\n" not in self._read:
            if not (data := self._receive()):
                raise ValueError(f"closed the connection after {command!r}")
            self._read += data
            if len(self._read) > _MAX_LINE_BYTES:
                raise ValueError(f"answered {command!r} with more than {_MAX_LINE_BYTES:,} bytes")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def send(self, command: str) -> None:
        self._apply_deadline()
        self._connection.sendall(command.encode() + b"\n")

    def read_rest(self) -> str:
        """Return everything until the server closes the connection, or `MAX_BYTES` of it."""
        while len(self._read) < MAX_BYTES and (data := self._receive()):
            self._read += data
        return self._read[:MAX_BYTES].decode("utf-8", "replace")

    def _receive(self) -> bytes:
        self._apply_deadline()
        return self._connection.recv(_CHUNK)

    def _apply_deadline(self) -> None:
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)
