"""Hosts: which VMs a cluster runs on, as users write them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.cluster.host import Host, parse_host
from workbench.cluster.host_file import read_host_file
from workbench.errors import UsageError

HostsLike = str | os.PathLike[str] | Iterable[str | Host | Mapping[str, object]]
"""What `parse_hosts` reads."""


def parse_hosts(hosts: HostsLike) -> tuple[Host, ...]:
    """Return the hosts that `hosts` names, in order.

    Parameters
    ----------
    hosts
        One of these:

        - Text such as ``"vm1:2,me@vm2:2,[fd00::1]:4"``. The number behind the
          colon is the slots, as in horovodrun and Open MPI, and never the port;
          without one it is 1.
        - A host file: a path, or text that names an existing file. Each line is
          ``vm1 slots=2``, as Horovod and Open MPI read it; also ``vm1:2``,
          ``me@vm1``, ``max_slots=`` (checked, then without effect), and beyond
          them ``user= port= python= directory= interface=`` and
          ``env.NAME=value``. A value with blanks stands in quotes; ``#`` begins
          a comment at the start of a word. A host that stands there twice has
          the slots of both lines.
        - Several of: such texts for one host each, `Host` objects, mappings
          with the names of its fields (the way to give a port without a file).

    Raises
    ------
    UsageError
        It names no host, one twice, something that is no host, or a file that
        cannot be read.
    """
    path = _path(hosts)
    if path is not None:
        return read_host_file(path)
    items: list[object]
    if isinstance(hosts, str):
        asked = f"hosts={hosts!r}"
        items = [part.strip() for part in hosts.split(",")] if hosts.strip() else []
    else:
        asked = "hosts"
        items = _items(hosts)
    if not items:
        raise UsageError(f"{asked}: no host named. Write hosts and slots, such as vm1:2,vm2:2.")
    try:
        found = tuple(_host(item) for item in items)
        _check_distinct(found)
    except UsageError as error:
        raise UsageError(f"{asked}: {error}") from None
    return found


def text(hosts: Iterable[Host]) -> str:
    """Return hosts as people write them: ``vm1:2,me@vm2:2``.

    `parse_hosts` reads it back; what a host has beyond user, name and slots is
    not in it.
    """
    return ",".join(f"{host.label}:{host.slots}" for host in hosts)


def total_slots(hosts: Iterable[Host]) -> int:
    """Return how many ranks fit on all hosts together."""
    return sum(host.slots for host in hosts)


def _items(hosts: object) -> list[object]:
    # Iterating over these gives something, but no hosts.
    if isinstance(hosts, Mapping | bytes | Host) or not isinstance(hosts, Iterable):
        raise UsageError(
            f"hosts: a {type(hosts).__name__} names no hosts. Write text such as vm1:2,vm2:2, "
            "the path of a host file, or a list of texts, Host objects or mappings."
        )
    return list(hosts)


def _host(item: object) -> Host:
    if isinstance(item, Host):
        return item
    if isinstance(item, str):
        return Host(**parse_host(item.strip()))
    if isinstance(item, Mapping):
        known = [each.name for each in fields(Host)]
        unknown = [key for key in item if key not in known]
        if unknown:
            raise UsageError(
                f"{unknown[0]!r}: not a field of a host. Known are {', '.join(known)}."
            )
        if "name" not in item:
            raise UsageError('a host has no name. Write one, such as {"name": "vm1", "slots": 2}.')
        values: dict[str, Any] = dict(item)
        return Host(**values)
    raise UsageError(
        f"{item!r}: not a host. Write text such as vm1:2, a Host, or a mapping with a name."
    )


def _check_distinct(hosts: tuple[Host, ...]) -> None:
    for identity, count in Counter(host.identity for host in hosts).items():
        if count > 1:
            same = [host for host in hosts if host.identity == identity]
            slots, label = total_slots(same), same[0].label
            raise UsageError(
                f"{label} is named {'twice' if count == 2 else f'{count} times'}. "
                f"Write it once: {label}:{slots} gives it {slots} slots."
            )


def _path(hosts: object) -> Path | None:
    """Return the host file that `hosts` is, or None where it is none."""
    if isinstance(hosts, os.PathLike):
        return Path(hosts)
    if not isinstance(hosts, str):
        return None
    # No host has a slash in its name: who writes one means a file, found or not.
    # A URL and a list are left to the message about hosts.
    if "/" in hosts and "://" not in hosts and "," not in hosts:
        return Path(hosts)
    try:
        return Path(hosts) if Path(hosts).is_file() else None
    except (OSError, ValueError):  # too long for a file name, or a NUL in it
        return None
