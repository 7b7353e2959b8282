"""The launcher that starts the agents of all VMs with one ``mpiexec`` of Open MPI.

mpiexec starts a process for each rank (`workbench.agent.mpi_slot`), called a slot. The first slot
of each VM starts the agent there, and all slots wait for the end of the agent. The agent forks the
ranks. If Horovod was built with MPI, each rank replaces the process of its slot in the MPI job.
Otherwise, the ranks join over Gloo. The agents do not depend on mpiexec, which may end earlier. The
kernel and mpiexec both reach other VMs over ssh.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from workbench.cluster.launchers import AgentStart, Connection, LocalLauncher, first_s, read_shared
from workbench.cluster.launchers.ssh import SshLauncher, cause_of, key_file
from workbench.errors import StartFailed
from workbench.hosts import Host

_log = logging.getLogger(__name__)

_READY = "workbench-slot-ready"
"""First word of the line of a slot that is ready. Its agent's folder and its number follow."""
_FAILED = "workbench-slot-failed"
"""First word of the line of a slot that has failed.

The folder, the exit status and the end of the output follow.
"""
_SLOT = (
    'mark=$1; shift; exec 3>&1; said=$("$@" 2>&1 >&3); code=$?; [ $code = 0 ] || '
    'printf "%s %s %s\n" "$mark" $code "$(printf %s "$said" | tail -n 3 | tr "\n" " ")" >&3; '
    "exit $code"
)
"""Shell script that runs a slot and reports its failure, even if Python does not exist."""
_RUN = 'trap : TERM; "$@"; code=$?; rm -rf -- "$0"; exit $code'
"""Shell script that runs mpiexec, and removes its temporary folder in any case."""
_POLL_S = 0.02
_MAX_VERSION_S = 20.0
_MAX_END_S = 5.0
_MAX_LOG_BYTES = 1 << 20
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_CAUSES = (
    (
        r"orted: (command )?not found|orted: No such file",
        "there is no Open MPI on a VM, or not on the PATH of its login shell",
        "install openmpi-bin on all VMs, or name its folder with mpi_args='--prefix ...'",
    ),
    (
        r"not enough slots|no available cpus|more processes than the ppr",
        "mpiexec has no place for so many ranks",
        "request fewer, or change what it may use with mpi_args ('--oversubscribe')",
    ),
    (
        r"no allocated resources|requested hosts? .*not|All nodes which are allocated",
        "not among the hosts that mpiexec may use",
        "name hosts of its job or host file only",
    ),
    (
        r"mpiexec: Error: (unknown option .*)",
        "mpiexec does not know an option",
        "correct mpi_args",
    ),
    (
        r"no route found|unable to (reliably start|connect|reach)|does not know how to route",
        "mpiexec could not start its daemon on a VM, or the daemon does not reach this machine",
        (
            "check `ssh {host} orted --version` and the firewall; of several networks, choose one "
            "with mpi_args='--mca oob_tcp_if_include ...'"
        ),
    ),
)


@dataclass
class _MpiexecRun:
    """A running mpiexec, and the states of its slots.

    Attributes
    ----------
    process
        The shell that runs mpiexec.
    log
        The output of mpiexec and of the slots.
    agents
        The agents that mpiexec starts.
    ready
        The numbers of the slots that are ready, by the folder of their agent.
    failed
        The exit status and the last output of a failed slot, by the folder of the slot's agent.
    """

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    agents: Sequence[AgentStart]
    ready: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    _log_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to read or close the log: one thread may stop the cluster while another starts ranks."""

    def close_log(self) -> None:
        """Close the log. `read` then raises `StartFailed`."""
        with self._log_lock:
            self.log.close()

    def read(self) -> str:
        """Read the output so far, update the states of the slots, and return all other lines.

        Raises
        ------
        StartFailed
            Another thread has released the launcher.
        """
        with self._log_lock:
            if self.log.closed:
                raise StartFailed("the cluster was stopped while mpiexec started its agents")
            text = read_shared(self.log, 0, _MAX_LOG_BYTES)
        others = []
        for line in text.splitlines():
            # The user's options may make mpiexec print a prefix before the line of a slot.
            start = max(line.find(_READY), line.find(_FAILED), 0)
            mark, *words = line[start:].split(" ", 3)
            if mark == _READY and len(words) == 2:
                self.ready.setdefault(words[0], set()).add(words[1])
            elif mark == _FAILED and len(words) > 1 and words[1].isdecimal():
                self.failed.setdefault(words[0], (int(words[1]), " ".join(words[2:])))
            else:
                others.append(line)
        return "\n".join(others)

    def has_answered(self, agent: AgentStart) -> bool:
        """Return whether all slots of a VM are ready, or one of them has failed."""
        folder = str(agent.folder)
        return folder in self.failed or len(self.ready.get(folder, ())) == agent.slots


class MpiLauncher(SshLauncher):
    """Starts agents with mpiexec, and connects to the agents of other VMs over ssh.

    The parameter `config` is an ssh client configuration, which replaces the user's, for
    mpiexec too. The parameter `arguments` has further arguments of mpiexec.
    """

    needs_hosts = False
    has_slots = True

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(config, arguments)
        self._runs: list[_MpiexecRun] = []
        self._errors: dict[Host | None, StartFailed] = {}
        """The reason why the agent of a VM did not start."""
        self._local_launcher = LocalLauncher()

    def launch(
        self,
        agents: Sequence[AgentStart],
        grace_s: float,
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Start these agents with one mpiexec. See `Launcher`."""
        _check_mpiexec()
        run = self._start_mpiexec(agents, (grace_s, first_s(deadline)))
        while True:
            has_ended = run.process.poll() is not None
            output = run.read()
            if all(map(run.has_answered, agents)):
                break
            if has_ended:
                if not run.ready and not run.failed:
                    raise _failure(run.process.returncode, output, [agent.host for agent in agents])
                break
            if interrupted.is_set():
                raise StartFailed("interrupted")
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        for agent in agents:
            self._errors.pop(agent.host, None)
            if str(agent.folder) in run.failed:
                code, words = run.failed[str(agent.folder)]
                self._errors[agent.host] = self.failure(agent.host, code, words)
            elif not run.has_answered(agent):
                status = run.process.returncode if has_ended else None
                self._errors[agent.host] = _failure(status, output, [agent.host])

    def _start_mpiexec(
        self, agents: Sequence[AgentStart], limits: tuple[float, float]
    ) -> _MpiexecRun:
        """Start mpiexec; `limits` has the arguments GRACE_S and FIRST_S of the slots."""
        environment = {name: os.environ[name] for name in os.environ if name != "SSH_CONNECTION"}
        if os.geteuid() == 0:  # mpiexec refuses to run as root otherwise
            environment |= dict.fromkeys(_ROOT, "1")
        remote = agents[0].host is not None
        folder = Path(tempfile.mkdtemp(prefix="workbench-mpi-"))
        command = ["sh", "-c", _RUN, str(folder), *self._mpiexec_command(agents, folder, limits)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 - mpiexec writes to it as long as it runs
        # Start a new session, so that Ctrl-C in a terminal does not end mpiexec.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/" if remote else None,  # a folder that every VM has
            env=environment if remote else os.environ | environment,
        )
        _log.info("Started mpiexec for %d agents as process %d", len(agents), process.pid)
        run = _MpiexecRun(process, log, agents)
        self._runs.append(run)
        return run

    def _mpiexec_command(
        self, agents: Sequence[AgentStart], folder: Path, limits: tuple[float, float]
    ) -> list[str]:
        """Return the command of mpiexec.

        Parameters
        ----------
        agents
            The agents to start.
        folder
            The folder for the files of mpiexec on this machine.
        limits
            The arguments GRACE_S and FIRST_S of the slots.
        """
        command = ["mpiexec", "--enable-recovery", "--mca", "orte_local_tmpdir_base", str(folder)]
        if agents[0].host is not None:
            config = _write_ssh_config(
                folder, [agent.host for agent in agents if agent.host], self._config
            )
            # mpiexec connects to each VM from this machine, like the kernel. The VMs therefore need
            # no keys for each other.
            command += ["--mca", "plm_rsh_agent", f"ssh -F {config}"]
            command += ["--mca", "plm_rsh_no_tree_spawn", "1"]
            command += [
                "--mca",
                "orte_keep_fqdn_hostnames",
                "1",
            ]  # otherwise, names are cut off at the first dot
        if not any(word.lstrip("-") == "bind-to" for word in self._arguments):
            command += ["--bind-to", "none"]
        command += self._arguments
        first = 0
        for agent in agents:
            host = agent.host
            name = "localhost" if host is None else replace(host, user=None).label
            python = (host.python if host else None) or sys.executable
            slot = [python, "-m", "workbench.agent.mpi_slot", str(agent.folder), str(first)]
            command += [":"] if first else []
            command += ["--host", f"{name}:{agent.slots}", "-n", str(agent.slots)]
            command += [
                "sh",
                "-c",
                _SLOT,
                "sh",
                f"{_FAILED} {agent.folder}",
                *slot,
                *map(str, limits),
                _READY,
            ]
            first += agent.slots
        return command

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """Connect to the agent that `launch` has started. See `Launcher`."""
        if host not in self._errors:
            if host is None:
                return self._local_launcher.attach(host, folder, grace_s)
            return self._run(host, [str(folder)], None)
        ours, theirs = socket.socketpair()
        theirs.close()
        return Connection(ours)

    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """See `Launcher`."""
        if host is None:
            return self._local_launcher.attach(host, folder, patience_s)
        return super().attach(host, folder, patience_s)

    def failure(self, host: Host | None, code: int | None, output: str) -> StartFailed:
        """See `Launcher`."""
        if host in self._errors:
            return self._errors[host]
        if host is None:
            return self._local_launcher.failure(host, code, output)
        return super().failure(host, code, output)

    def release(self) -> None:
        """End each mpiexec that still runs. Most of them have ended with their agents."""
        for run in tuple(self._runs):
            for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
                if signal_number is not None:
                    _log.debug("Sending signal %d to mpiexec %d", signal_number, run.process.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(run.process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.process.wait(_MAX_END_S)
                    break
            run.close_log()
        self._runs.clear()


def _check_mpiexec() -> None:
    """Raise `StartFailed` if this machine has no mpiexec of Open MPI."""
    if shutil.which("mpiexec") is None:
        raise StartFailed(
            "there is no mpiexec on this machine's PATH",
            fix="install Open MPI (Debian and Ubuntu: openmpi-bin), on all VMs",
        )
    try:
        text = subprocess.run(
            ["mpiexec", "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MAX_VERSION_S,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(
            f"`mpiexec --version` cannot be run: {error}", fix="install Open MPI again"
        ) from error
    if not re.search(r"OpenRTE|Open MPI", text):
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no version")
        raise StartFailed(
            f"{shutil.which('mpiexec')} is not that of Open MPI ({first})",
            fix="install Open MPI and put its mpiexec first on the PATH, or start the ranks over "
            "ssh with launcher='ssh'",
        )


def _write_ssh_config(folder: Path, hosts: Sequence[Host], config: Path | None) -> Path:
    """Write an ssh configuration with the users, ports and keys of the hosts, for mpiexec."""
    lines = []
    for host in hosts:
        lines.append(f"Host {host.name}")
        lines += [f"User {host.user}"] if host.user is not None else []
        lines += [f"Port {host.port}"] if host.port is not None else []
        if host.key is not None:
            lines += [f'IdentityFile "{key_file(host)}"', "IdentitiesOnly yes"]
    lines += ["Host *", "BatchMode yes", "ConnectTimeout 10", "ControlMaster no"]
    lines += ["ControlPath none", "LogLevel ERROR"]
    included = [config] if config else [Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")]
    lines += [f'Include "{path.absolute()}"' for path in included]
    path = folder / "ssh_config"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _failure(code: int | None, output: str, hosts: Sequence[Host | None]) -> StartFailed:
    """Return the error about mpiexec, which has started no agent on some VMs.

    Parameters
    ----------
    code
        The exit status of mpiexec; None while it runs.
    output
        The output of mpiexec.
    hosts
        The VMs without an agent.
    """
    ended = "did not start the agents in time" if code is None else f"ended with exit status {code}"
    messages, help_texts = _split_help_texts(output)
    line = next((line for line in messages if cause_of(line)), "")
    cause, fix = cause_of(line) or (f"mpiexec {ended}", "correct what its output names")
    if not line:
        lines = messages + help_texts
        for pattern, known_cause, known_fix in _CAUSES:
            line = next((text for text in lines if re.search(pattern, text)), "")
            if line:
                cause = known_cause
                fix = known_fix
                break
        else:
            line = " ".join(help_texts[:3] or messages[-3:])
    host_names = [host.name for host in hosts if host is not None]
    named_hosts = [
        name for name in host_names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line)
    ]
    vm = named_hosts[0] if named_hosts else host_names[0] if len(host_names) == 1 else ""
    fix = fix.format(host=vm or "HOST")
    vm = next((host.shown for host in hosts if host is not None and host.name == vm), vm)
    return StartFailed(cause + (f" ({line})" if line else ""), vm=vm, fix=fix)


def _split_help_texts(output: str) -> tuple[list[str], list[str]]:
    r"""Return the lines outside and inside of mpiexec's help texts.

    Lines of dashes enclose a help text.

    Examples
    --------
    >>> _split_help_texts("a\n-----\nb\n-----\nc")
    (['a', 'c'], ['b'])
    """
    parts: tuple[list[str], list[str]] = [], []
    is_inside = False
    for line in output.splitlines():
        if line.startswith("-----"):
            is_inside = not is_inside
        elif line.strip():
            parts[is_inside].append(line.strip())
    return parts
