"""Leases: which process has created which VMs, so that stale ones can be removed.

A process writes a lease before it creates anything. The lease contains the process id, and the
prefix of all names that the process creates. After the end of the process, everything with this
prefix is stale. Files without a lease are stale too. A network device without a lease is not
removed, because it may belong to a container that shares this network.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workbench.errors import VmsUnavailable
from workbench.safefiles import wait_for_lock
from workbench.testbed.network import NETNS, free_subnet

_log = logging.getLogger(__name__)

_ROOT = Path("/run/workbench-vms")
_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"wb[0-9a-f]{8}")
"""A lease's name has always ten characters, so that no name is a prefix of another.

Linux limits the name of a network interface to 15 characters; so five are left for the rest.
"""
_KILL_S = 5.0
_LOCK_S = 60.0
_POLL_S = 0.01
_STATE_FIELD = 0
"""Position of the state in ``/proc/PID/stat``, after the program's name; see proc(5)."""
_START_FIELD = 19
"""Position of the start in clock ticks, counted in the same way."""


@dataclass(frozen=True)
class Lease:
    """The names and addresses of one call of `vms`.

    Attributes
    ----------
    name
        Prefix of the names of everything that the call creates.
    subnet
        The first three numbers of the VMs' network, such as ``"10.64.7"``.
    pid, started, boot
        The process of the call: the id, the start in clock ticks since boot, and the boot's id.
    """

    name: str
    subnet: str
    pid: int
    started: int
    boot: str

    @property
    def folder(self) -> Path:
        """Folder of the VMs' keys, configurations and logs; readable by root only."""
        return _ROOT / self.name

    def is_alive(self) -> bool:
        """Return whether the process of the lease is running."""
        return self.boot == _boot() and self.started == _started(self.pid)


def acquire() -> Lease:
    """Remove stale VMs, and reserve a name and a network."""
    with _locked():
        _remove_stale()
        leases = _leases()
        pid = os.getpid()
        names = (f"wb{pid & 0xFFFFFF:06x}{serial:02x}" for serial in range(256))
        free_name = next(
            (name for name in names if name not in leases and not _devices(name)), None
        )
        if free_name is None:
            raise VmsUnavailable("this process has 256 groups of VMs. Close one of them first.")
        lease = Lease(
            name=free_name,
            subnet=free_subnet(other.subnet for other in leases.values()),
            pid=pid,
            started=_started(pid) or 0,
            boot=_boot(),
        )
        _lease_file(free_name).write_text(json.dumps(asdict(lease)), encoding="utf-8")
        lease.folder.mkdir(mode=0o700)
        _log.info("acquired the lease %s for VMs in %s.0/24", lease.name, lease.subnet)
        return lease


def clean_up() -> tuple[str, ...]:
    """Remove the VMs of processes that have ended, and return the names of their leases.

    VMs of running processes are never changed.

    Raises
    ------
    VmsUnavailable
        ``/run`` is not writable.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return ()
    with _locked():
        return _remove_stale()


def remove(name: str) -> None:
    """Terminate every process in the VMs of a lease, and remove everything with its name.

    What cannot be removed now is removed by a later `clean_up`.
    """
    namespaces = [path.name for path in _NAMESPACES.glob(f"{name}-*")]
    _kill(namespaces)
    for namespace in namespaces:
        _output_of("ip", "netns", "delete", namespace)
    # The kernel removes the links of a deleted namespace with a delay.
    for device in _devices(name):
        _output_of("ip", "link", "delete", device)
    for folder in (*NETNS.glob(f"{name}-*"), _ROOT / name):
        shutil.rmtree(folder, ignore_errors=True)
    if not _devices(name) and not list(_NAMESPACES.glob(f"{name}-*")):
        _lease_file(name).unlink(missing_ok=True)


def _remove_stale() -> tuple[str, ...]:
    """Remove the VMs of processes that have ended, and return the names of their leases."""
    active_names = {name for name, lease in _leases().items() if lease.is_alive()}
    stale_names = sorted(_names() - active_names)
    for name in stale_names:
        _log.info("removing the stale VMs of the lease %s", name)
        remove(name)
    return tuple(stale_names)


def _names() -> set[str]:
    """Return the lease names of all files of this package."""
    files = [path.name for path in (*_ROOT.iterdir(), *NETNS.glob("wb*"))]
    files += [path.name for path in _NAMESPACES.glob("wb*")]
    return {match[0] for file in files if (match := _NAME.match(file))}


def _leases() -> dict[str, Lease]:
    leases = {}
    for path in _ROOT.glob("wb*.json"):
        # Skip a file that is truncated because its process was killed.
        with suppress(OSError, ValueError, TypeError):
            leases[path.stem] = Lease(**json.loads(path.read_text(encoding="utf-8")))
    return leases


def _kill(namespaces: list[str]) -> None:
    """Kill all processes in the namespaces, including those that start during the call."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        running = [pid for namespace in namespaces for pid in _pids(namespace)]
        if not running:
            return
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    _log.info("processes still run in %s after %g s", ", ".join(namespaces), _KILL_S)


def _pids(namespace: str) -> list[int]:
    return [int(word) for word in _output_of("ip", "netns", "pids", namespace).split()]


def _devices(name: str) -> list[str]:
    """Return the network devices of a lease that are outside the VMs."""
    return [device for _, device in socket.if_nameindex() if device.startswith(name)]


def _output_of(*command: str) -> str:
    """Run a command that may fail, and return its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def _locked() -> Iterator[None]:
    """Prevent other processes from acquiring or removing leases."""
    try:
        _ROOT.mkdir(mode=0o755, exist_ok=True)
        with (_ROOT / "lock").open("w") as lock:
            wait_for_lock(lock.fileno(), fcntl.LOCK_EX, _LOCK_S)
            yield
    except OSError as error:
        raise VmsUnavailable(f"cannot use {_ROOT}: {error}") from error


def _lease_file(name: str) -> Path:
    return _ROOT / f"{name}.json"


def _boot() -> str:
    """Return the id of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may contain any character.
    fields = text.rpartition(")")[2].split()
    has_ended = fields[_STATE_FIELD] in "ZX"  # a zombie, or dead
    return None if has_ended else int(fields[_START_FIELD])
