"""The hosts of a cluster, as users write them: text, host files, or Python objects."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.hosts.host import (
    MAX_SLOTS,
    Host,
    Identity,
    parse_host,
    whole_number,
)
from workbench.safefiles import open_regular, read_file

HostsLike = str | os.PathLike[str] | Iterable[str | Host | Mapping[str, object]]
"""The types that `parse_hosts` accepts."""


def parse_hosts(hosts: HostsLike) -> tuple[Host, ...]:
    """Return the named hosts, in order.

    Parameters
    ----------
    hosts
        One of these:

        - Text such as ``"vm1:2,me@vm2:2,[fd00::1]:4"``. After the colon are the slots, as in
          horovodrun and Open MPI; the default is 1. An ssh port above 1,024, which slots cannot
          be, is written before them, ``vm1:2222:4``, or after a user, ``me@vm1:2222``.
        - A host file: a path, or text that is the path of an existing file. A line is
          ``vm1 slots=2``, as Horovod and Open MPI read it; or ``vm1:2``, ``me@vm1``. Further
          keys are ``max_slots=`` (only checked), ``user= port= key= python= directory= interface=``
          and ``env.NAME=value``. Quotes enclose a value with spaces; a word that begins
          with ``#`` begins a comment. A host on two lines has the slots of both.
        - An iterable of such texts for one host each, `Host` objects, and mappings with the
          names of its fields, which can also set the port.

    Raises
    ------
    UsageError
        There is no host, a host appears twice or is invalid, or the file cannot be read.
    """
    path = _path(hosts)
    if path is not None:
        return _with_aliases(read_host_file(path))
    items: list[object]
    if isinstance(hosts, str):
        asked = f"hosts={hosts!r}"
        items = [item.strip() for item in hosts.split(",")] if hosts.strip() else []
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
    return _with_aliases(found)


def text(hosts: Iterable[Host]) -> str:
    """Return hosts as text for `parse_hosts`: ``vm1:2,me@vm2:2222:2``.

    Ports up to 1,024 and the other fields cannot be written there.
    """
    return ",".join(
        f"{host.full_label if (host.port or 0) > MAX_SLOTS else host.label}:{host.slots}"
        for host in hosts
    )


def _with_aliases(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts; those that share a name are shown with their users and ports."""
    count = Counter(host.name for host in hosts)
    return tuple(
        host if count[host.name] == 1 else replace(host, alias=host.full_label) for host in hosts
    )


def with_key(hosts: tuple[Host, ...], ssh_key: str | os.PathLike[str] | None) -> tuple[Host, ...]:
    """Return the hosts, of which those without a key file have this one, if one is given.

    Raises
    ------
    UsageError
        The file cannot be read.
    """
    if ssh_key is None:
        return hosts
    try:
        key = Path(ssh_key).expanduser().absolute()
        os.close(open_regular(key))
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in it; a ~user that is not there
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"ssh_key='{ssh_key}': {why}. Give the path of a private key that can be read."
        ) from None
    return tuple(host if host.key else replace(host, key=str(key)) for host in hosts)


def total_slots(hosts: Iterable[Host]) -> int:
    """Return the number of slots of all hosts."""
    return sum(host.slots for host in hosts)


def _items(hosts: object) -> list[object]:
    # these are iterable, but not lists of hosts
    try:
        if not isinstance(hosts, Mapping | bytes | Host) and isinstance(hosts, Iterable):
            return list(hosts)
    except TypeError:  # an array without dimensions
        pass
    raise UsageError(
        f"hosts: a {type(hosts).__name__} names no hosts. Write text such as vm1:2,vm2:2, "
        "the path of a host file, or a list of texts, Host objects or mappings."
    )


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
    """Return the path of the host file, or None if `hosts` is something else."""
    if isinstance(hosts, os.PathLike):
        return Path(hosts)
    if not isinstance(hosts, str):
        return None
    # a name with a slash can only be a file, whether it exists or not; URLs and lists get
    # the message about hosts
    if "/" in hosts and "://" not in hosts and "," not in hosts:
        return Path(hosts)
    try:
        return Path(hosts) if Path(hosts).is_file() else None
    except (OSError, ValueError):  # too long for a file name, or a NUL in it
        return None


# One word of a host file's line, or a comment up to its end.
_WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<word>(?:[^\s"']|"[^"]*"|'[^']*')+))""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_MAX_BYTES = 1 << 20
"""The largest host file: 10,000 hosts with 100 characters each."""
_MAX = {"slots": MAX_SLOTS, "max_slots": 999_999_999, "port": 65535}
"""The largest number of each key; a host may have fewer slots than its line allows."""
_TEXT_KEYS = ("user", "key", "python", "directory", "interface")
_KEYS = "slots, max_slots, user, port, key, python, directory, interface, env.NAME"


def read_host_file(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a host file, each once, in the order of its lines."""
    try:
        content = read_file(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            f"host file {path}: not UTF-8 text. Write one host per line, such as vm1 slots=2."
        ) from None
    except OSError as error:
        raise UsageError(
            f"host file {path}: {error.strerror}. Give the path of a file that can be read."
        ) from None
    found: dict[Identity, Host] = {}
    limits: dict[Identity, int] = {}
    for number, line in enumerate(content.split("\n"), 1):
        try:
            words = _words(line)
            if words:
                _add(words, found, limits)
        except UsageError as error:
            raise UsageError(f"host file {path}, line {number}: {error}") from None
    if not found:
        raise UsageError(
            f"host file {path}: it names no host. Write one per line, such as vm1 slots=2."
        )
    return tuple(found.values())


def _words(line: str) -> list[str]:
    """Return the words of a line without its comment; quotes enclose spaces."""
    words: list[str] = []
    at, line = 0, line.rstrip()
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            raise UsageError("a quote is not closed. Write the value between two equal quotes.")
        if found["comment"] is not None:
            break
        words.append(_QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", found["word"]))
        at = found.end()
    return words


def _add(words: list[str], found: dict[Identity, Host], limits: dict[Identity, int]) -> None:
    """Add one line to the hosts and slot limits found so far."""
    values = parse_host(words[0])
    limit = _keys(words[1:], values)
    host = Host(**values)
    identity = host.identity
    if identity in found:
        host = _joined(found[identity], host)
    limits[identity] = min(limit, limits.get(identity, MAX_SLOTS))
    if host.slots > limits[identity]:
        raise UsageError(
            f"{host.label}: {host.slots} slots, but max_slots={limits[identity]}. Write fewer "
            "slots, or raise max_slots."
        )
    found[identity] = host


def _keys(words: list[str], values: dict[str, Any]) -> int:
    """Add the fields of ``key=value`` words to `values`; return max_slots."""
    environment: dict[str, str] = {}
    seen = values.keys() - {"name"}
    for word in words:
        key, equals, value = word.partition("=")
        key = "max_slots" if key == "max-slots" else key
        if not equals:
            raise UsageError(f"{word!r}: not key=value. Known keys are {_KEYS}.")
        if key in seen:
            raise UsageError(f"{key}: given twice for one host. Write it once.")
        seen.add(key)
        if key in _MAX:
            values[key] = whole_number(key, value, _MAX[key])
        elif key in _TEXT_KEYS:
            values[key] = value
        elif key.startswith("env."):
            environment[key.removeprefix("env.")] = value
        else:
            raise UsageError(f"{key!r}: unknown key. Known keys are {_KEYS}.")
    values["environment"] = environment
    return int(values.pop("max_slots", MAX_SLOTS))


def _joined(before: Host, after: Host) -> Host:
    """Return one host with the slots and the other fields of two lines."""
    for what in ("key", "python", "directory", "interface"):
        first, second = getattr(before, what), getattr(after, what)
        if None not in (first, second) and first != second:
            raise UsageError(
                f"{after.label}: {what} is {first!r} in a line above and {second!r} here. "
                "Write it once."
            )
    for name, value in after.environment.items():
        if before.environment.get(name, value) != value:
            raise UsageError(f"{after.label}: env.{name} differs in a line above. Write it once.")
    return replace(
        before,
        slots=before.slots + after.slots,
        key=before.key or after.key,
        python=before.python or after.python,
        directory=before.directory or after.directory,
        interface=before.interface or after.interface,
        environment={**before.environment, **after.environment},
    )
