"""What a user asks of a cluster, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.cluster.durations import parse_duration
from workbench.cluster.host import Host
from workbench.cluster.hosts import HostsLike, parse_hosts, total_slots
from workbench.errors import UsageError
from workbench.safefiles import open_regular


@dataclass(frozen=True)
class Options:
    """How many ranks, where, and what is to happen when; see `Cluster`.

    Attributes
    ----------
    n
        Ranks, on whatever VMs.
    hosts
        None on this machine.
    runs
        Where runs are kept; None for the usual folder.
    """

    n: int
    hosts: tuple[Host, ...] | None
    ssh_config: Path | None
    start_timeout_s: float
    hang_after_s: float | None
    release_after: str | float | None
    keep_s: float | None
    runs: str | None = None

    @classmethod
    def checked(
        cls,
        n: int | None,
        hosts: HostsLike | None,
        ssh_config: str | os.PathLike[str] | None,
        launcher: str | None,
        keep: str | float | None,
        **others: Any,
    ) -> Options:
        """Return what was asked for.

        Raises
        ------
        UsageError
            It cannot mean anything.
        """
        where = _hosts(n, hosts, launcher)
        ranks = total_slots(where) if where is not None else 2 if n is None else n
        path = None if ssh_config is None else checked_ssh_config(ssh_config)
        keep_s = None if keep is None else parse_duration(keep, "keep")
        return cls(ranks, where, path, keep_s=keep_s, **others)

    @property
    def place(self) -> tuple[object, ...]:
        """What makes two clusters the same: how many ranks, and where."""
        return (self.n, self.hosts, self.ssh_config)

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        hosts = None if self.hosts is None else [host.to_plain() for host in self.hosts]
        config = None if self.ssh_config is None else str(self.ssh_config)
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"hosts": hosts, "ssh_config": config}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Options:
        """Read what `to_plain` gave."""
        hosts, config = plain["hosts"], plain["ssh_config"]
        where = None if hosts is None else tuple(Host(**host) for host in hosts)
        path = None if config is None else Path(config)
        return cls(**plain | {"hosts": where, "ssh_config": path})


def checked_ssh_config(ssh_config: str | os.PathLike[str]) -> Path:
    """Return the path of an ssh client configuration.

    Raises
    ------
    UsageError
        It is no file that can be read.
    """
    try:
        os.close(open_regular(ssh_config))
    except OSError as error:
        raise UsageError(
            f"ssh_config={os.fspath(ssh_config)!r}: {error.strerror}. "
            "Give the path of a file that can be read."
        ) from None
    return Path(ssh_config).expanduser()


def _hosts(n: int | None, hosts: HostsLike | None, launcher: str | None) -> tuple[Host, ...] | None:
    if launcher not in {None, "local", "ssh"}:
        raise UsageError(f"launcher={launcher!r}: not a launcher. Write 'local' or 'ssh'.")
    if hosts is not None:
        if n is not None:
            raise UsageError(
                f"n={n!r} with hosts={hosts!r}: the hosts' slots are the ranks. Leave n out."
            )
        if launcher == "local":
            raise UsageError(
                "launcher='local' with hosts: it starts ranks on this machine. Leave hosts out."
            )
        return parse_hosts(hosts)
    if launcher == "ssh":
        raise UsageError(
            "launcher='ssh': hosts are missing. Name them, such as hosts='vm1:2,vm2:2'."
        )
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise UsageError(f"n={n!r}: must be a positive integer. Write the number of ranks.")
    return None
