"""Check the arguments of a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, TypedDict

from workbench.cluster import launchers
from workbench.cluster.durations import parse_duration
from workbench.cluster.launchers import LAUNCHERS, launcher_class
from workbench.errors import UsageError
from workbench.hosts import MAX_SLOTS, Host, HostsLike, parse_hosts, total_slots, with_key
from workbench.rank import backends
from workbench.ranks import as_int
from workbench.safefiles import open_regular


class JobRequest(TypedDict, total=False):
    """The request for a new allocation of Slurm, or for an existing cluster of ipyparallel.

    For Slurm, it has options of sbatch. `sbatch` has further options in one text, as in a shell,
    and `queue_timeout` is a duration. For an existing cluster, it has the profile or the connection
    file.
    """

    partition: str
    time: str
    nodes: int
    account: str
    qos: str
    constraint: str
    cpus_per_task: int
    gpus_per_task: int
    sbatch: str
    queue_timeout: str | float
    profile: str
    connection_file: str


_EXISTING = ("profile", "connection_file")
_JOB_NUMBERS = ("nodes", "cpus_per_task", "gpus_per_task")


@dataclass(frozen=True)
class Options:
    """The checked arguments of `Cluster`; its docstring describes them.

    Attributes
    ----------
    n
        The number of ranks on all VMs. 0 stands for a rank per engine of an existing cluster, until
        the launcher has counted the engines.
    hosts
        The VMs; None on this machine, and before a launcher has allocated them.
    launcher
        A name of `LAUNCHERS`.
    mpi_args
        Further arguments of mpiexec.
    record
        Whether cells are recorded until `Cluster.recording` is set.
    cold
        Whether the start neither uses nor leaves a warm process.
    job
        The `JobRequest` of a new allocation; empty for none.
    allocation
        The launcher's allocation, for another kernel; None before it, and if there is none. Its
        "n", if any, is the number of ranks that the user has requested.

    Examples
    --------
    >>> options = Options.checked(2, None, None, None, None, None, "ddp",
    ...     start_timeout_s=60.0, hang_after_s=None, release_after="30m")
    >>> options.n, options.backend, options.launcher, options.release_after
    (2, 'ddp', 'local', '30m')
    >>> Options.from_plain(options.to_plain()) == options
    True
    """

    n: int
    hosts: tuple[Host, ...] | None
    ssh_config: Path | None
    start_timeout_s: float
    hang_after_s: float | None
    release_after: str | float | None
    keep_s: float | None
    runs: str | None = None
    backend: str = backends.DEFAULT
    launcher: str = launchers.DEFAULT
    mpi_args: tuple[str, ...] = ()
    record: bool = True
    cold: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)
    allocation: Mapping[str, Any] | None = field(default=None, repr=False)  # it may have keys

    @classmethod
    def checked(
        cls,
        n: int | None,
        hosts: HostsLike | None,
        ssh_config: str | os.PathLike[str] | None,
        ssh_key: str | os.PathLike[str] | None,
        launcher: str | None,
        keep: str | float | None,
        backend: str,
        job: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Options:
        """Return the checked arguments; raise `UsageError` if one is invalid."""
        for name in ("start_timeout_s", "hang_after_s"):
            if name in others and (name == "start_timeout_s" or others[name] is not None):
                others[name] = _checked_seconds(others[name], name)
        if isinstance(others.get("release_after"), Real):
            others["release_after"] = parse_duration(others["release_after"], "release_after")
        launcher = _with_existing(launcher, job or {})
        parsed_hosts = _hosts(n, hosts, launcher)
        others["mpi_args"] = _checked_mpi_args(others.get("mpi_args"), launcher)
        name = launcher or (launchers.DEFAULT if parsed_hosts is None else launchers.FOR_HOSTS)
        if parsed_hosts is not None:
            parsed_hosts = with_key(parsed_hosts, ssh_key)
        elif ssh_key is not None:
            raise UsageError(f"ssh_key='{ssh_key}' without hosts: nothing uses it. Leave it out.")
        if parsed_hosts is not None:
            _check_names(parsed_hosts, name)
        job = _checked_job(job or {}, name)
        ranks = total_slots(parsed_hosts) if parsed_hosts is not None else _ranks(n, name, job)
        path = None if ssh_config is None else checked_ssh_config(ssh_config)
        keep_s = None if keep is None else parse_duration(keep, "keep")
        if not (isinstance(backend, str) and backend in backends.BACKENDS):
            names = " or ".join(map(repr, backends.BACKENDS))
            raise UsageError(f"backend={backend!r}: not a backend. Write {names}.")
        _check_switches(others, name)
        return cls(
            *(ranks, parsed_hosts, path),
            keep_s=keep_s,
            backend=backend,
            launcher=name,
            job=job,
            **others,
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """The options in which two clusters agree if they count as the same."""
        return (
            *(self.launcher, self.mpi_args, self.ssh_config, self.job, self.requested_n),
            None if self.allocation else self.hosts,
            self.backend,
        )

    @property
    def requested_n(self) -> int:
        """The user's `n`, even after the launcher has counted the engines."""
        return int((self.allocation or {}).get("n", self.n))

    @property
    def remote(self) -> bool:
        """Whether the ranks are on VMs, and not on this machine."""
        return self.hosts is not None or launcher_class(self.launcher).allocates

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        hosts = None if self.hosts is None else [host.to_plain() for host in self.hosts]
        config = None if self.ssh_config is None else str(self.ssh_config)
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"hosts": hosts, "ssh_config": config, "mpi_args": list(self.mpi_args)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Options:
        """Return options from the result of `to_plain`."""
        hosts = plain["hosts"]
        config = plain["ssh_config"]
        parsed_hosts = None if hosts is None else tuple(Host(**host) for host in hosts)
        path = None if config is None else Path(config)
        arguments = tuple(plain["mpi_args"])
        return cls(**plain | {"hosts": parsed_hosts, "ssh_config": path, "mpi_args": arguments})


def _check_switches(options: Mapping[str, Any], launcher: str) -> None:
    for name in ("record", "cold"):
        if not isinstance(options.get(name, False), bool):
            raise UsageError(f"{name}={options[name]!r}: not a bool. Write True or False.")
    if options.get("cold") and launcher != launchers.DEFAULT:
        raise UsageError(
            f"cold=True with launcher={launcher!r}: only ranks on this machine can start warm. "
            "Leave it out."
        )


def checked_ssh_config(ssh_config: str | os.PathLike[str]) -> Path:
    """Return the path of an ssh client configuration; raise `UsageError` if it cannot be read."""
    try:
        os.close(open_regular(ssh_config))
    except OSError as error:
        raise UsageError(
            f"ssh_config='{ssh_config}': {error.strerror}. "
            "Give the path of a file that can be read."
        ) from None
    return Path(ssh_config).expanduser()


def _checked_mpi_args(arguments: object, launcher: str | None) -> tuple[str, ...]:
    if arguments is None:
        return ()
    if launcher != "mpi":
        raise UsageError(f"mpi_args={arguments!r}: only for launcher='mpi'. Leave it out.")
    try:
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise UsageError(f"mpi_args={arguments!r}: {error}. Close the quote.") from None
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"mpi_args={arguments!r}: not text. Write mpiexec's options as text.")
    return tuple(words)


def _checked_seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise UsageError(f"{name}={value!r}: must be a number above 0. Write seconds.")
    return float(value)


def checked_n(n: object, maximum: int | None = MAX_SLOTS) -> int:
    """Return a number of ranks as an integer.

    Raise `UsageError` if it is not a positive integer, or above `maximum`. The default maximum is
    for a single machine; None is for no maximum.

    Examples
    --------
    >>> checked_n(4)
    4
    >>> checked_n(0)
    Traceback (most recent call last):
    ...
    workbench.errors.UsageError: n=0: must be a positive integer. Write the number of ranks.
    """
    number = as_int(n)
    if number is None or number < 1:
        raise UsageError(f"n={n!r}: must be a positive integer. Write the number of ranks.")
    if maximum is not None and number > maximum:
        raise UsageError(
            f"n={n!r}: one machine runs at most {maximum} ranks. Write a smaller number."
        )
    return number


def _with_existing(launcher: str | None, job: Mapping[str, Any]) -> str | None:
    """Return the launcher: the one for existing clusters if the job names one."""
    named = [name for name in _EXISTING if job.get(name) is not None]
    if len(named) > 1:
        raise UsageError("profile and connection_file name two clusters. Give one of them.")
    return "existing" if named and launcher is None else launcher


def _hosts(n: int | None, hosts: HostsLike | None, launcher: str | None) -> tuple[Host, ...] | None:
    if launcher is not None and not (isinstance(launcher, str) and launcher in LAUNCHERS):
        names = " or ".join(map(repr, LAUNCHERS))
        raise UsageError(f"launcher={launcher!r}: not a launcher. Write {names}.")
    if hosts is not None:
        if n is not None:
            raise UsageError(
                f"n={n!r} with hosts={hosts!r}: the hosts' slots are the ranks. Leave n out."
            )
        if launcher is not None and launcher_class(launcher).allocates:
            raise UsageError(
                f"launcher={launcher!r} with hosts: it chooses the hosts. Leave hosts out"
                + ("; name nodes with sbatch='--nodelist=...'." if launcher == "slurm" else ".")
            )
        if launcher is not None and not launcher_class(launcher).remote:
            raise UsageError(
                f"launcher={launcher!r} with hosts: it starts ranks on this machine. "
                "Leave hosts out."
            )
        return parse_hosts(hosts)
    if launcher is not None and launcher_class(launcher).needs_hosts:
        raise UsageError(
            f"launcher={launcher!r}: hosts are missing. Name them, such as hosts='vm1:2,vm2:2'."
        )
    return None


def _ranks(n: int | None, launcher: str, job: Mapping[str, Any]) -> int:
    if not launcher_class(launcher).allocates:
        return 2 if n is None else checked_n(n)
    if launcher == "existing":
        return 0 if n is None else checked_n(n, None)
    tasks = "" if job else os.environ.get("SLURM_NTASKS", "")
    if n is None:
        n = int(tasks) if tasks.isdecimal() else 2
    number = checked_n(n, None)
    if job.get("nodes", 1) > number:
        raise UsageError(
            f"nodes={job['nodes']}: more than n={number} ranks. Write a node for each rank at most."
        )
    return number


def _check_names(hosts: tuple[Host, ...], launcher: str) -> None:
    """Raise `UsageError` if hosts share a name, and the launcher's command needs unique names."""
    if launcher_class(launcher).has_slots and any(host.alias is not None for host in hosts):
        names = ", ".join(host.shown for host in hosts)
        raise UsageError(
            f"hosts {names} with launcher={launcher!r}: mpiexec cannot tell hosts of one name "
            "apart. Give each a name in the ssh config, or use launcher='ssh'."
        )


def _checked_job(job: Mapping[str, Any], launcher: str) -> dict[str, Any]:
    """Return a job's request without values of None; raise `UsageError` if it is invalid."""
    request = {name: value for name, value in job.items() if value is not None}
    valid_names = JobRequest.__annotations__
    for name, value in request.items():
        if name not in valid_names:
            slurm_names = [option for option in valid_names if option not in _EXISTING]
            raise UsageError(
                f"{name}={value!r}: not an option of a cluster. Those of a Slurm job are "
                f"{', '.join(slurm_names)}."
            )
        owner = "existing" if name in _EXISTING else "slurm"
        if launcher != owner:
            raise UsageError(f"{name}={value!r}: only for launcher={owner!r}. Leave it out.")
        if name in _JOB_NUMBERS:
            number = as_int(value)
            if number is None or number < 1:
                raise UsageError(f"{name}={value!r}: must be a positive integer.")
            request[name] = number
        elif name == "queue_timeout":
            request[name] = parse_duration(value, name)
        elif not isinstance(value, str) or not value or not value.isprintable():
            raise UsageError(f"{name}={value!r}: must be one line of text.")
    try:
        shlex.split(request.get("sbatch", ""))
    except ValueError as error:
        raise UsageError(f"sbatch={request['sbatch']!r}: {error}. Close the quotes.") from None
    return request
