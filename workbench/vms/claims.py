"""Who made what, so that what dead makers left can be taken down.

A maker writes a claim before it makes anything: its process, and the name that
everything it makes begins with. Whatever bears the name of a claim whose
process is gone is nobody's, and so is a file of no claim. A device of no claim
may be that of a maker in a container that shares this network, and is let be.
"""

from __future__ import annotations

import fcntl
import json
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
from workbench.vms import etc
from workbench.vms.network import free_subnet

_ROOT = Path("/run/workbench-vms")
_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"wb[0-9a-f]{8}")
"""Ten characters, always: no name begins another, and five are left for an interface's."""
_KILL_S = 5.0
_LOCK_S = 60.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Claim:
    """What one call of `vms` makes.

    Attributes
    ----------
    name
        What the names of all that it makes begin with.
    subnet
        The first three numbers of its network, such as ``"10.64.7"``.
    pid, started, boot
        Its maker: process id, start in clock ticks since boot, and which boot.
    """

    name: str
    subnet: str
    pid: int
    started: int
    boot: str

    @property
    def folder(self) -> Path:
        """Where its keys, configs and logs are; only root may look."""
        return _ROOT / self.name

    def is_alive(self) -> bool:
        """Whether its maker still runs."""
        return self.boot == _boot() and self.started == _started(self.pid)


def claim() -> Claim:
    """Take down what dead makers left, and claim a name and a network.

    Raises
    ------
    VmsUnavailable
        No network is free, or the claim cannot be written.
    """
    with _alone():
        _take_down_the_dead()
        living = _claims()
        pid = os.getpid()
        names = (f"wb{pid & 0xFFFFFF:06x}{serial:02x}" for serial in range(256))
        free = next((name for name in names if name not in living and not _devices(name)), None)
        if free is None:
            raise VmsUnavailable("this process has made VMs 256 times and kept them all")
        made = Claim(
            name=free,
            subnet=free_subnet(other.subnet for other in living.values()),
            pid=pid,
            started=_started(pid) or 0,
            boot=_boot(),
        )
        _file(free).write_text(json.dumps(asdict(made)), encoding="utf-8")
        made.folder.mkdir(mode=0o700)
        return made


def clean_up() -> tuple[str, ...]:
    """Take down what makers left that are dead now, and return its names.

    What a living process made is never touched.

    Raises
    ------
    VmsUnavailable
        ``/run`` is not there to write to.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return ()
    with _alone():
        return _take_down_the_dead()


def take_down(name: str) -> None:
    """End every process in the VMs of a claim and remove all that bears its name.

    What cannot be removed is left to a later `clean_up`.
    """
    namespaces = [path.name for path in _NAMESPACES.glob(f"{name}-*")]
    _kill(namespaces)
    for namespace in namespaces:
        _try("ip", "netns", "delete", namespace)
    # the kernel takes the links of a dead namespace down some time later
    for device in _devices(name):
        _try("ip", "link", "delete", device)
    for folder in (*etc.NETNS.glob(f"{name}-*"), _ROOT / name):
        shutil.rmtree(folder, ignore_errors=True)
    if not _devices(name) and not list(_NAMESPACES.glob(f"{name}-*")):
        _file(name).unlink(missing_ok=True)


def _take_down_the_dead() -> tuple[str, ...]:
    living = {name for name, owner in _claims().items() if owner.is_alive()}
    dead = sorted(_names() - living)
    for name in dead:
        take_down(name)
    return tuple(dead)


def _names() -> set[str]:
    """Return every name that a file of ours bears."""
    bearers = [path.name for path in (*_ROOT.iterdir(), *etc.NETNS.glob("wb*"))]
    bearers += [path.name for path in _NAMESPACES.glob("wb*")]
    return {found[0] for bearer in bearers if (found := _NAME.match(bearer))}


def _claims() -> dict[str, Claim]:
    found = {}
    for path in _ROOT.glob("wb*.json"):
        # one that was cut short by its maker's death is no claim
        with suppress(OSError, ValueError, TypeError):
            found[path.stem] = Claim(**json.loads(path.read_text(encoding="utf-8")))
    return found


def _kill(namespaces: list[str]) -> None:
    """Kill what runs in the namespaces, and what that starts meanwhile."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        running = [pid for namespace in namespaces for pid in _pids(namespace)]
        if not running:
            return
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _pids(namespace: str) -> list[int]:
    return [int(word) for word in _try("ip", "netns", "pids", namespace).split()]


def _devices(name: str) -> list[str]:
    return [device for _, device in socket.if_nameindex() if device.startswith(name)]


def _try(*command: str) -> str:
    """Run a command that may fail; return its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other makers from claiming and cleaning meanwhile."""
    try:
        _ROOT.mkdir(mode=0o755, exist_ok=True)
        with (_ROOT / "lock").open("w") as lock:
            wait_for_lock(lock.fileno(), fcntl.LOCK_EX, _LOCK_S)
            yield
    except OSError as error:
        raise VmsUnavailable(f"{_ROOT} cannot be used: {error}") from error


def _file(name: str) -> Path:
    return _ROOT / f"{name}.json"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _started(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since boot; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the second field is the program's name in parentheses, which may hold anything
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
