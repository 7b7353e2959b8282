"""Launchers: they start an agent on each VM, and connect the kernel to it.

- `ssh`: the launcher for VMs; the launcher for this machine is in this file
- `mpi`: starts the agents of all VMs, or of this machine, with one mpiexec
- `slurm`: the launcher for Slurm; `slurm_commands`: the commands that it runs;
  `slurm_job`: parses and describes a job
- `existing`: the launcher for clusters that ipyparallel has started; `foreign_cluster`: calls
  functions on their engines
- `preflight`: checks before ranks start; `placement`: the interface, GPU, NIC and cores of a rank
- `ipyparallel_launcher`: starts agents for clusters that ipyparallel itself manages

To add a launcher, add a module here with a subclass of `Launcher` or `RelayLauncher`, and an entry
in the table `LAUNCHERS`. Also add it to `PLACES` and to the `launchers=` of its options in
`workbench.cluster.start_options`, to the checks in `workbench.cluster.options`, and to
labextension/src/cluster/fields.ts.
"""

from __future__ import annotations

import errno
import importlib
import logging
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

_log = logging.getLogger(__name__)

LAUNCHERS = {
    "local": "workbench.cluster.launchers.LocalLauncher",
    "ssh": "workbench.cluster.launchers.ssh.SshLauncher",
    "mpi": "workbench.cluster.launchers.mpi.MpiLauncher",
    "slurm": "workbench.cluster.launchers.slurm.SlurmLauncher",
    "existing": "workbench.cluster.launchers.existing.ExistingLauncher",
}
"""The class of each launcher, by the name that users write."""
DEFAULT = "local"
"""The launcher if the user names neither a launcher nor hosts."""
FOR_HOSTS = "ssh"
"""The launcher if the user names hosts but no launcher."""
_MAX_LOG_BYTES = 4096
_CONNECT_S = 15.0


def launcher_class(name: str) -> type[Launcher]:
    """Import and return the class of a launcher in `LAUNCHERS`.

    Examples
    --------
    >>> launcher_class("ssh").needs_hosts
    True
    """
    module, _, class_name = LAUNCHERS[name].rpartition(".")
    launcher: type[Launcher] = getattr(importlib.import_module(module), class_name)
    return launcher


def create(name: str, config: Path | None = None, arguments: tuple[str, ...] = ()) -> Launcher:
    """Return a new launcher by its name in `LAUNCHERS`. See `Launcher` for the other parameters."""
    return launcher_class(name)(config, arguments)


def refused_start(error: OSError) -> StartFailed:
    """Return the error of a start that failed on this machine, with advice.

    Examples
    --------
    >>> refused_start(OSError(errno.ENOSPC, "No space left on device", "/tmp")).cause
    '/tmp: No space left on device. Make room there, then start again.'
    """
    prefix = "" if error.filename is None else f"{error.filename}: "
    if error.errno == errno.EMFILE:
        return StartFailed(
            f"this process may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files, and "
            "has reached that number. Raise the limit with `ulimit -n 4096` before the kernel "
            "starts."
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StartFailed(f"{prefix}{error.strerror}. Make room there, then start again.")
    return StartFailed(f"{prefix}{error.strerror or error}. Correct that, then start again.")


def read_shared(log: IO[bytes], start: int, size: int) -> str:
    """Read text from a log to which another process writes through the same open file.

    That process writes at the file position, which both processes share. This function does not
    move the position, because the process would then overwrite its earlier output.
    """
    return os.pread(log.fileno(), size, start).decode("utf-8", "replace")


@dataclass
class Connection:
    """A connection to an agent.

    Attributes
    ----------
    socket
        Sends messages to the agent, and receives its messages.
    process
        The process on this machine that connects to the agent, such as ``ssh``; or the agent
        itself, if this kernel has started it on this machine.
    log
        The output of `process`.
    """

    socket: socket.socket
    process: detached.DetachedProcess | None = None
    log: IO[bytes] | None = None
    _log_lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Held to read or close the log: the I/O thread closes it while other threads read it."""

    def log_tail(self) -> list[str]:
        """Return the last lines of the log."""
        with self._log_lock:
            return self._read_log()

    def close_log(self) -> list[str]:
        """Close the log, and return its last lines."""
        with self._log_lock:
            lines = self._read_log()
            if self.log is not None:
                self.log.close()
                self.log = None
            return lines

    def _read_log(self) -> list[str]:
        """Return the last lines of the log. The caller holds `_log_lock`."""
        if self.log is None:
            return []
        start = max(0, os.fstat(self.log.fileno()).st_size - _MAX_LOG_BYTES)
        return read_shared(self.log, start, _MAX_LOG_BYTES).splitlines()


@dataclass(frozen=True)
class AgentStart:
    """An agent to start: its VM (None for this machine), its number of ranks, and its folder."""

    host: Host | None
    slots: int
    folder: Path


class Launcher(ABC):
    """Starts agents, and connects to them.

    Parameters
    ----------
    config
        A configuration file for the launcher's command, if the user has named one.
    arguments
        Further arguments of the command, for launchers that accept some.

    Attributes
    ----------
    remote
        Whether the launcher starts agents on other VMs, rather than on this machine.
    allocates
        Whether the launcher chooses the VMs (`allocate`), rather than the user.
    needs_hosts
        Whether the user must name the VMs.
    has_slots
        Whether the launcher also starts a process per rank, and the rank gets the environment of
        this process (`workbench.agent.mpi_slot`).
    """

    remote: ClassVar[bool] = False
    allocates: ClassVar[bool] = False
    needs_hosts: ClassVar[bool] = False
    has_slots: ClassVar[bool] = False

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        self._config = config
        self._arguments = arguments

    def launch(  # noqa: B027 - most launchers start each agent with a separate command
        self,
        agents: Sequence[AgentStart],
        grace_s: float,
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Start several agents with one command, if this launcher can; `start` then connects.

        Parameters
        ----------
        agents
            The agents to start.
        grace_s
            The agents end after this many seconds without a kernel.
        deadline
            The time, on the clock of `time.monotonic`, at which to give up.
        interrupted
            An event: if it is set, give up at once.

        Raises
        ------
        StartFailed
            No agent was started.
        """

    def allocate(self, options: Any, _: Callable[[str], None]) -> Any:
        """Wait until this launcher has VMs, and return the `Options` with them.

        If the options already have VMs, return the options unchanged. The caller must call
        `release` later, even if this raises an error.

        Parameters
        ----------
        options
            The `Options` of the cluster.
        _
            Called with one line about the progress of the wait.

        Raises
        ------
        StartFailed
            No VMs are available.
        """
        return options

    def release(self) -> None:
        """End the remaining processes of `launch`, and release the VMs of `allocate`."""
        return

    def unavailable_reason(self, _: Host | None) -> str:
        """Return why a VM, or all VMs (None), can no longer be used; empty if unknown.

        This may block.
        """
        return ""

    def describe(self) -> str:
        """Return one line about the allocation; empty if there is none. This may block."""
        return ""

    @abstractmethod
    def start(self, host: Host | None, folder: Path, grace_s: float, *, keep: bool) -> Connection:
        """Start the agent of a VM, and connect to it.

        Parameters
        ----------
        host
            The VM; None for this machine.
        folder
            The folder of the agent.
        grace_s
            The agent ends after this many seconds without a kernel.
        keep
            Whether the agent may outlive this process.

        Raises
        ------
        StartFailed
            The command that starts the agent cannot be run.
        """

    @abstractmethod
    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """Connect to a running agent.

        Parameters
        ----------
        host
            The VM; None for this machine.
        folder
            The folder of the agent.
        patience_s
            How long to wait for a VM that does not answer.

        Raises
        ------
        OSError
            The agent has ended.
        """

    @abstractmethod
    def failure(self, host: Host | None, code: int | None, output: str) -> StartFailed:
        """Return the error about an agent that did not answer.

        Parameters
        ----------
        host
            The VM; None for this machine.
        code
            Exit status of the relay or of the agent; None while it runs.
        output
            The output of the relay or of the agent.
        """


def first_s(deadline: float) -> float:
    """Return for how many seconds agents that `Launcher.launch` starts wait for the kernel.

    The kernel connects only when all agents have started, which is at `deadline` (on the clock of
    `time.monotonic`) at the latest.
    """
    return deadline - time.monotonic() + _CONNECT_S


def python_failure(code: int | None, output: str, python: str) -> tuple[str, str] | None:
    """Explain why a VM's Python could not run the relay.

    Parameters
    ----------
    code
        The exit status of the command; None if it is unknown.
    output
        The output of the command.
    python
        The Python interpreter that was started.

    Returns
    -------
    tuple of str or None
        The cause, and what to do. None if Python is not the cause.

    Examples
    --------
    >>> python_failure(1, "No module named 'workbench'", "python3")[0]
    'gradient-workbench is not installed for python3 there'
    >>> python_failure(127, "", "python4")[0]
    'there is no such Python: python4'
    """
    missing_module = re.search(r"No module named '?([\w.]+)", output)
    if missing_module and missing_module[1].split(".")[0] == "workbench":
        return (
            f"gradient-workbench is not installed for {python} there",
            f"install it there in the same version: {python} -m pip install gradient-workbench",
        )
    if missing_module:
        return f"{python} lacks {missing_module[1]} there", "install gradient-workbench there again"
    if code in {126, 127}:
        return (
            f"there is no such Python: {python}",
            "name the one there that has gradient-workbench (python=... for the host)",
        )
    return None


class LocalLauncher(Launcher):
    """Starts the agent of this machine. The agent ends with this process unless it is kept.

    Attributes
    ----------
    load
        The modules that the agent will load, if it may be forked from the kernel's warm process;
        None to start a new process.
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
        _log.info(
            "Started the agent of this machine in %s (%s)",
            folder,
            "new process" if self.load is None else "from the warm process, if it can be used",
        )
        return Connection(client, process, open_log(folder))

    def attach(self, _: Host | None, folder: Path, __: float) -> Connection:
        """See `Launcher`."""
        return Connection(connect_agent(folder))

    def failure(self, _: Host | None, code: int | None, output: str) -> StartFailed:
        """See `Launcher`."""
        ended = "did not answer in time" if code is None else exit_text(code)
        return StartFailed(f"the agent of this machine {ended}:\n{output}")


class RelayLauncher(Launcher):
    """Runs a command that starts the relay on a VM and carries its standard input and output."""

    remote = True

    @abstractmethod
    def command(self, host: Host, program: list[str], patience_s: float | None) -> list[str]:
        """Return the command that runs a program on a VM.

        Parameters
        ----------
        host
            The VM.
        program
            The program and its arguments.
        patience_s
            How long to wait for a VM that does not answer; None for the default.

        Raises
        ------
        StartFailed
            The command does not exist on this machine.
        """

    def environment(self) -> dict[str, str] | None:
        """Return the environment of the command; None for the environment of this process."""
        return None

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder), str(grace_s)], None)

    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder)], patience_s)

    def _run(self, host: Host | None, arguments: list[str], patience_s: float | None) -> Connection:
        """Run the relay on a VM, and return the connection."""
        assert host is not None
        program = [host.python or sys.executable, "-m", "workbench.agent.relay", *arguments]
        command = self.command(host, program, patience_s)
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the connection is
        try:
            # Start a new session, so that Ctrl-C in a terminal does not end the command.
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
        _log.debug("%s: started %s as process %d", host.shown, command[0], process.pid)
        return Connection(ours, process, log)
