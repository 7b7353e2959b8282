"""Launchers: how the kernel starts an agent on each VM, and connects to it.

- `ssh`: the launcher for VMs; the one for this machine is below
- `mpi`: agents of all VMs, or of this machine, by one mpiexec
- `slurm`: the launcher for Slurm; `slurm_commands`: what it runs;
  `slurm_job`: a job in words
- `existing`: the launcher for clusters that ipyparallel has started; `foreign_cluster`: calls
  on their engines
- `preflight`: checks before ranks start; `placement`: the interface, GPU, NIC and cores of a rank
- `ipyparallel_launcher`: agents for clusters that ipyparallel itself starts

A new launcher needs a module here with a subclass of `Launcher`, or of `RelayLauncher`, and an
entry in the table `LAUNCHERS`.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from workbench.cluster import warm
from workbench.errors import StartFailed
from workbench.hosts import Host
from workbench.wire import detached
from workbench.wire.agent_messages import Load
from workbench.wire.detached import connect_agent, exit_text, open_log, start_agent

LAUNCHERS = {
    "local": "workbench.cluster.launchers.LocalLauncher",
    "ssh": "workbench.cluster.launchers.ssh.SshLauncher",
    "mpi": "workbench.cluster.launchers.mpi.MpiLauncher",
    "slurm": "workbench.cluster.launchers.slurm.SlurmLauncher",
    "existing": "workbench.cluster.launchers.existing.ExistingLauncher",
}
"""The class of each launcher, by the name that users write."""
DEFAULT = "local"
FOR_HOSTS = "ssh"
"""The default where the user names hosts."""
_LOG_BYTES = 4096
_CONNECT_S = 15.0


def launcher_class(name: str) -> type[Launcher]:
    """Return the class of a launcher in `LAUNCHERS`."""
    module, _, class_name = LAUNCHERS[name].rpartition(".")
    found: type[Launcher] = getattr(importlib.import_module(module), class_name)
    return found


def create(name: str, config: Path | None = None, arguments: tuple[str, ...] = ()) -> Launcher:
    """Return a launcher by its name in `LAUNCHERS`; the others are parameters of `Launcher`."""
    return launcher_class(name)(config, arguments)


def refused_start(error: OSError) -> StartFailed:
    """Return why a start failed on this machine, and what to do."""
    where = "" if error.filename is None else f"{error.filename}: "
    if error.errno == errno.EMFILE:
        return StartFailed(
            f"this process may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files, and "
            "has reached that number. Raise the limit with `ulimit -n 4096` before the kernel "
            "starts."
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StartFailed(f"{where}{error.strerror}. Make room there, then start again.")
    return StartFailed(f"{where}{error.strerror or error}. Correct that, then start again.")


def read_shared(log: IO[bytes], start: int, size: int) -> str:
    """Return text of a log to which a process writes through the same open file.

    The process writes at the position of that file. Reading must not move it, or the process would
    overwrite what it has written.
    """
    return os.pread(log.fileno(), size, start).decode("utf-8", "replace")


@dataclass
class Connection:
    """A connection to an agent.

    Attributes
    ----------
    socket
        Sends to the agent and receives from it.
    process
        The relay's process on this machine, such as ``ssh``; or the agent itself, if this
        kernel has started it on this machine.
    log
        The output of `process`.
    """

    socket: socket.socket
    process: detached.DetachedProcess | None = None
    log: IO[bytes] | None = None
    _using_log: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """The I/O thread closes the log while other threads may read it."""

    def said(self) -> list[str]:
        """Return the last lines of the log."""
        with self._using_log:
            return self._read_log()

    def close_log(self) -> list[str]:
        """Close the log, and return its last lines."""
        with self._using_log:
            lines = self._read_log()
            if self.log is not None:
                self.log.close()
                self.log = None
            return lines

    def _read_log(self) -> list[str]:
        """Return the last lines of the log; `_using_log` is held."""
        if self.log is None:
            return []
        start = max(0, os.fstat(self.log.fileno()).st_size - _LOG_BYTES)
        return read_shared(self.log, start, _LOG_BYTES).splitlines()


@dataclass(frozen=True)
class AgentStart:
    """An agent to start: its VM (None for this machine), the number of its ranks, its folder."""

    host: Host | None
    slots: int
    folder: Path


class Launcher(ABC):
    """Starts agents, and connects to them.

    Parameters
    ----------
    config
        A configuration file for its command, if the user has named one.
    arguments
        Further arguments of the command, for a launcher that accepts some.

    Attributes
    ----------
    remote
        Whether agents can start on other hosts, rather than on this machine.
    allocates
        Whether it chooses the hosts itself (`allocate`), instead of the user.
    needs_hosts
        Whether the user must name the hosts.
    has_slots
        Whether there is also a process for each rank, whose environment the rank gets
        (`workbench.agent.mpi_slot`).
    """

    remote: ClassVar[bool] = False
    allocates: ClassVar[bool] = False
    needs_hosts: ClassVar[bool] = False
    has_slots: ClassVar[bool] = False

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        self._config, self._arguments = config, arguments

    def launch(  # noqa: B027 - most launchers start each agent by a command of its own
        self,
        agents: Sequence[AgentStart],
        grace_s: float,
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Start several agents by one command, if this launcher does; `start` then connects.

        Parameters
        ----------
        grace_s
            The agents end after so many seconds without a kernel.
        deadline
            When to give up, by `time.monotonic`.
        interrupted
            Set when to give up at once.

        Raises
        ------
        StartFailed
            No agent was started.
        """

    def allocate(self, options: Any, _: Callable[[str], None]) -> Any:
        """Wait for hosts; return the `Options` with them, or unchanged if they have them.

        The second argument is called with what is waited for. Raise `StartFailed` if no hosts
        can be had. `release` must be called in any case.
        """
        return options

    def release(self) -> None:
        """End what is left of `launch`, and give back what `allocate` took, if anything."""
        return

    def why_gone(self, _: Host | None) -> str:
        """Return why a host, or all, can no longer be used; empty if unknown. May block."""
        return ""

    def describe(self) -> str:
        """Return one line about what `allocate` took; empty for nothing. May block."""
        return ""

    @abstractmethod
    def start(self, host: Host | None, folder: Path, grace_s: float, *, keep: bool) -> Connection:
        """Start the agent of a VM; it ends after `grace_s` seconds without a kernel.

        Parameters
        ----------
        keep
            Whether it may outlive this process.

        Raises
        ------
        StartFailed
            The command that launches it cannot be run.
        """

    @abstractmethod
    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """Connect to a running agent.

        Parameters
        ----------
        patience_s
            How long to wait for a VM that does not answer.

        Raises
        ------
        OSError
            The agent is known to have ended.
        """

    @abstractmethod
    def failure(self, host: Host | None, code: int | None, said: str) -> StartFailed:
        """Return why the agent of a VM did not answer.

        Parameters
        ----------
        code
            Exit status of the relay or of the agent; None while it runs.
        said
            Their output.
        """


def first_s(deadline: float) -> float:
    """Return for how many seconds agents that `Launcher.launch` starts wait for the kernel.

    They have started until `deadline` (by `time.monotonic`), and only then it connects.
    """
    return deadline - time.monotonic() + _CONNECT_S


def python_failure(code: int | None, said: str, python: str) -> tuple[str, str] | None:
    """Return why a VM's Python could not run the relay, and what to do; None if it could."""
    missing = re.search(r"No module named '?([\w.]+)", said)
    if missing and missing[1].split(".")[0] == "workbench":
        return (
            f"gradient-workbench is not installed for {python} there",
            f"install it there in the same version: {python} -m pip install gradient-workbench",
        )
    if missing:
        return f"{python} lacks {missing[1]} there", "install gradient-workbench there again"
    if code in {126, 127}:
        return (
            f"there is no such Python: {python}",
            "name the one there that has gradient-workbench (python=... for the host)",
        )
    return None


class LocalLauncher(Launcher):
    """Starts the agent of this machine; it ends with this process unless it is kept.

    Attributes
    ----------
    load
        What the agent will be told to load, if the kernel's warm process may be used.
    """

    load: Load | None = None

    def start(self, _: Host | None, folder: Path, grace_s: float, *, keep: bool) -> Connection:
        """See `Launcher`."""
        try:
            parent = None if keep else os.getpid()
            spawn = detached.spawn if self.load is None else warm.spawner(self.load)
            process, client = start_agent(folder, grace_s, parent, spawn=spawn)
        except OSError as error:
            raise refused_start(error) from error
        return Connection(client, process, open_log(folder))

    def attach(self, _: Host | None, folder: Path, __: float) -> Connection:
        """See `Launcher`."""
        return Connection(connect_agent(folder))

    def failure(self, _: Host | None, code: int | None, said: str) -> StartFailed:
        """See `Launcher`."""
        ended = "did not answer in time" if code is None else exit_text(code)
        return StartFailed(f"the agent of this machine {ended}:\n{said}")


class RelayLauncher(Launcher):
    """Runs the relay on a VM by a command, which connects it to standard input and output."""

    remote = True

    @abstractmethod
    def command(self, host: Host, program: list[str], patience_s: float | None) -> list[str]:
        """Return the command that runs a program on a host.

        Parameters
        ----------
        patience_s
            How long to wait for a host that does not answer; None for the default.

        Raises
        ------
        StartFailed
            There is no such command on this machine.
        """

    def environment(self) -> dict[str, str] | None:
        """Return the command's environment; None for that of this process."""
        return None

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder), str(grace_s)], None)

    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder)], patience_s)

    def _run(self, host: Host | None, arguments: list[str], patience_s: float | None) -> Connection:
        assert host is not None
        program = [host.python or sys.executable, "-m", "workbench.agent.relay", *arguments]
        command = self.command(host, program, patience_s)
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the connection is
        try:
            # in a session of its own, so that Ctrl-C in a terminal does not end it
            process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{command[0]} cannot be started: {error}", vm=host.shown) from error
        finally:
            theirs.close()
        return Connection(ours, process, log)
