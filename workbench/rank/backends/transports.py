"""Transports of collectives, from Gloo's connections and NCCL's log."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import psutil

from workbench.wire.transport import Transport

_LEVEL = "NCCL_DEBUG"
_FILE = "NCCL_DEBUG_FILE"
_LOGGED = {"INFO", "TRACE"}
_USING = re.compile(r"NCCL INFO NET/(?P<kind>\S+?)\s*: Using (?P<devices>\[\d+\].*)")
_DEVICE = re.compile(r"\[(?P<number>\d+)\](?P<name>[^\s;]+)")
_OVER = re.compile(
    r" via NET/(?P<kind>[^/\n]+)/(?P<number>\d+)(?:\(\d+\))?(?P<options>[/\w]*)", re.MULTILINE
)
_WITHIN = re.compile(
    r" -> \S+(?: \[\w+\])? via (?!NET/)(?P<how>\S.*?)(?: comm .*)?[ \t]*$", re.MULTILINE
)
_CHOSEN = re.compile(r"NCCL INFO Using network (?P<kind>\S.*?)\s*$", re.MULTILINE)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[^\s(,]+)")
_LINKS = {"IB": "InfiniBand", "RoCE": "RoCE"}
_SOCKET = "Socket"
_MAX_BYTES = 16 << 20
"""Maximum size of the log that is read: enough for several communicators of 512 ranks."""
_OF_SOCKETS = "TCP"


def gloo_transport(addresses: Iterable[str]) -> Transport:
    """Return the transport of Gloo's collectives.

    Parameters
    ----------
    addresses
        This rank's addresses of Gloo's connections; empty without other ranks.
    """
    names = {
        entry.address.partition("%")[0]: name
        for name, interface_addresses in psutil.net_if_addrs().items()
        for entry in interface_addresses
    }
    interfaces = sorted({names.get(address, address) for address in addresses})
    return Transport("Gloo", _OF_SOCKETS if interfaces else "", tuple(interfaces))


class NcclLog:
    """NCCL's log of this process, unless the user has set another log level.

    Parameters
    ----------
    gpu
        Whether there is a GPU; without a GPU, NCCL is not used.
    """

    def __init__(self, *, gpu: bool) -> None:
        self._file: str | None = None
        self._begin = 0
        self._size = -1
        self._transport: Transport | None = None
        self._unknown = ""
        if not gpu:
            return
        level = os.environ.get(_LEVEL)
        file = os.environ.get(_FILE)
        if level is None and file is None:
            # the path has the process id, because child programs do not have this descriptor
            self._file = f"/proc/{os.getpid()}/fd/{os.memfd_create('nccl.log')}"
            os.environ.update({_LEVEL: "INFO", _FILE: self._file})
        elif level is not None and level.upper() in _LOGGED and file is not None:
            self._file = file.replace("%p", str(os.getpid())).replace("%h", os.uname().nodename)
        else:
            self._unknown = (
                f"{_LEVEL} is set to {level!r}: unset it, or set it to INFO with a file for the "
                f"log ({_FILE})"
            )

    def begin_ring(self) -> None:
        """Ignore the log so far, because it is about earlier rings."""
        if self._file is not None:
            self._transport = None
            self._unknown = ""
            self._size = -1
            with contextlib.suppress(OSError):
                self._begin = self._size = Path(self._file).stat().st_size

    def transport(self) -> Transport | None:
        """Return the transport of NCCL's collectives; None if it has not connected ranks."""
        if self._unknown:
            return Transport("NCCL", "", unknown=self._unknown)
        if self._file is None:
            return None
        log = Path(self._file)
        try:
            status = log.stat()
            if not stat.S_ISREG(status.st_mode):
                return Transport("NCCL", "", unknown=f"its log {log} is not a regular file")
            if status.st_size < self._size:  # a program that the cell has started writes there too
                self._unknown = f"another process has written to its log {log}"
                return Transport("NCCL", "", unknown=self._unknown)
            if status.st_size != self._size:
                with log.open("rb") as opened:
                    opened.seek(self._begin)
                    text = opened.read(_MAX_BYTES).decode("utf-8", "replace")
                self._transport = read_nccl_log(text)
                self._size = status.st_size
        except OSError as error:
            return Transport("NCCL", "", unknown=f"its log {log}: {error.strerror}")
        return self._transport


def read_nccl_log(text: str) -> Transport | None:
    """Return the transport of a process's NCCL collectives; None if it has not connected ranks.

    Parameters
    ----------
    text
        The log of NCCL 2.4 or later at the level INFO.

    Examples
    --------
    >>> read_nccl_log("NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC").within
    ('P2P/IPC',)
    >>> read_nccl_log("")
    """
    devices: dict[str, dict[int, str]] = {}
    for using in _USING.finditer(text):
        named_devices = {
            int(match["number"]): match["name"] for match in _DEVICE.finditer(using["devices"])
        }
        devices.setdefault(using["kind"], {}).update(named_devices)
    within = tuple(sorted({match["how"] for match in _WITHIN.finditer(text)}))
    over = list(_OVER.finditer(text))
    if not over:
        if within:
            return Transport("NCCL", "", within=within)
        chosen = _CHOSEN.search(text)
        reason = "it has not logged its connections"
        return None if chosen is None else Transport("NCCL", "", unknown=reason)
    used: dict[str, str] = {}
    for match in over:
        name, network = _device(match["kind"], int(match["number"]), devices)
        used[name] = network or _plugin(match["kind"], text)
    return Transport(
        "NCCL",
        " and ".join(sorted(set(used.values()))),
        tuple(sorted(used)),
        _gpudirect([match for match in over if match["kind"] != _SOCKET]),
        within,
    )


def _gpudirect(over: list[re.Match[str]]) -> Literal["", "all", "some", "none"]:
    direct = sum("/GDRDMA" in match["options"] for match in over)
    if not direct:
        return "none" if over else ""
    return "all" if direct == len(over) else "some"


def _device(kind: str, number: int, devices: dict[str, dict[int, str]]) -> tuple[str, str]:
    """Return the device of a connection, and its network if the log names it."""
    if kind == _SOCKET:
        name = devices.get(_SOCKET, {}).get(number, "")
        return name.partition(":")[0] or f"interface {number}", _OF_SOCKETS
    # a plugin for InfiniBand, such as IBext_v8, lists its devices as NCCL itself does
    name = devices.get("IB" if kind.startswith("IB") else kind, {}).get(number, "")
    port, _, link = name.partition("/")
    return port or f"device {number}", _LINKS.get(link.partition("/")[0], "")


def _plugin(kind: str, text: str) -> str:
    """Return the name of a network whose devices the log does not name."""
    provider = _PROVIDER.search(text)
    if kind.startswith("IB"):
        return "InfiniBand or RoCE"
    return f"{kind} ({provider['name']})" if provider else kind
