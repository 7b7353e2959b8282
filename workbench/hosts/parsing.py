"""Parse the hosts of a cluster from text, host files, or Python objects."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

HostsLike = str | os.PathLike[str] | Iterable[str | Host | Mapping[str, object]]
"""The types that `parse_hosts` accepts."""


def parse_hosts(hosts: HostsLike) -> tuple[Host, ...]:
    """Parse the hosts of a cluster, and return them in the order in which they are written.

    Parameters
    ----------
    hosts
        One of the following:

        - Text such as ``"vm1:2,me@vm2:2,[fd00::1]:4"``. The number after the colon is the number
          of slots, as in horovodrun and Open MPI; the default is 1. An ssh port above 1,024,
          which cannot be a number of slots, is written before the slots, ``vm1:2222:4``, or
          after a user, ``me@vm1:2222``.
        - A host file: a path, or text that is the path of an existing file. A line is
          ``vm1 slots=2``, as Horovod and Open MPI read it; or ``vm1:2``, ``me@vm1``. Further
          keys are ``max_slots=`` (only checked), ``user= port= key= python= directory= interface=``
          and ``env.NAME=value``. Quotes enclose a value with spaces; a word that begins
          with ``#`` begins a comment. A host on two lines has the slots of both.
        - An iterable with an element per host: a text, a `Host`, or a mapping with the names of
          the fields of `Host`. A mapping can also set the port.

    Raises
    ------
    UsageError
        There is no host, a host appears twice or is invalid, or the file cannot be read.

    Examples
    --------
    >>> for host in parse_hosts("vm1:2,me@vm2:2222:4"):
    ...     print(host.label, host.port, host.slots)
    vm1 None 2
    me@vm2 2222 4
    """
    path = _host_file_path(hosts)
    if path is not None:
        return _with_aliases(read_host_file(path))
    elements: list[object]
    if isinstance(hosts, str):
        source = f"hosts={hosts!r}"
        elements = [element.strip() for element in hosts.split(",")] if hosts.strip() else []
    else:
        source = "hosts"
        elements = _elements(hosts)
    if not elements:
        raise UsageError(f"{source}: no host named. Write hosts and slots, such as vm1:2,vm2:2.")
    try:
        parsed = tuple(_to_host(element) for element in elements)
        _check_distinct(parsed)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    return _with_aliases(parsed)


def text(hosts: Iterable[Host]) -> str:
    """Format hosts as text that `parse_hosts` accepts: ``vm1:2,me@vm2:2222:2``.

    The text form has no place for ports up to 1,024 and for the other fields, which are left out.

    Examples
    --------
    >>> text([Host("vm1", 2), Host("vm2", 4, user="me", port=2222)])
    'vm1:2,me@vm2:2222:4'
    """
    return ",".join(
        f"{host.full_label if (host.port or 0) > MAX_SLOTS else host.label}:{host.slots}"
        for host in hosts
    )


def _with_aliases(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Set the alias of hosts that share a name to their label with user and port."""
    count = Counter(host.name for host in hosts)
    return tuple(
        host if count[host.name] == 1 else replace(host, alias=host.full_label) for host in hosts
    )


def with_key(hosts: tuple[Host, ...], ssh_key: str | os.PathLike[str] | None) -> tuple[Host, ...]:
    """Return the hosts, with `ssh_key` as the key file of each host that has none.

    If `ssh_key` is None, return the hosts unchanged.

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
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, or an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"ssh_key='{ssh_key}': {reason}. Give the path of a private key that can be read."
        ) from None
    return tuple(host if host.key else replace(host, key=str(key)) for host in hosts)


def total_slots(hosts: Iterable[Host]) -> int:
    """Return the total number of slots of all hosts.

    Examples
    --------
    >>> total_slots(parse_hosts("vm1:2,vm2:4"))
    6
    """
    return sum(host.slots for host in hosts)


def _elements(hosts: object) -> list[object]:
    # A mapping or bytes can be iterated over, but is not a list of hosts.
    try:
        if not isinstance(hosts, Mapping | bytes | Host) and isinstance(hosts, Iterable):
            return list(hosts)
    except TypeError:  # an array without dimensions
        pass
    raise UsageError(
        f"hosts: a {type(hosts).__name__} names no hosts. Write text such as vm1:2,vm2:2, "
        "the path of a host file, or a list of texts, Host objects or mappings."
    )


def _to_host(element: object) -> Host:
    if isinstance(element, Host):
        return element
    if isinstance(element, str):
        return Host(**parse_host(element.strip()))
    if isinstance(element, Mapping):
        field_names = [field.name for field in fields(Host)]
        unknown_keys = [key for key in element if key not in field_names]
        if unknown_keys:
            raise UsageError(
                f"{unknown_keys[0]!r}: not a field of a host. Known are {', '.join(field_names)}."
            )
        if "name" not in element:
            raise UsageError('a host has no name. Write one, such as {"name": "vm1", "slots": 2}.')
        values: dict[str, Any] = dict(element)
        return Host(**values)
    raise UsageError(
        f"{element!r}: not a host. Write text such as vm1:2, a Host, or a mapping with a name."
    )


def _check_distinct(hosts: tuple[Host, ...]) -> None:
    for identity, count in Counter(host.identity for host in hosts).items():
        if count > 1:
            duplicates = [host for host in hosts if host.identity == identity]
            slots = total_slots(duplicates)
            label = duplicates[0].label
            raise UsageError(
                f"{label} is named {'twice' if count == 2 else f'{count} times'}. "
                f"Write it once: {label}:{slots} gives it {slots} slots."
            )


def _host_file_path(hosts: object) -> Path | None:
    """Return the path of the host file, or None if `hosts` is something else."""
    if isinstance(hosts, os.PathLike):
        return Path(hosts)
    if not isinstance(hosts, str):
        return None
    # Text with a slash can only be the path of a file, whether the file exists or not. URLs and
    # lists are not paths: the error about invalid hosts fits them better.
    if "/" in hosts and "://" not in hosts and "," not in hosts:
        return Path(hosts)
    try:
        return Path(hosts) if Path(hosts).is_file() else None
    except (OSError, ValueError):  # too long for a file name, or it has a NUL
        return None


# Matches one word of a host file's line, or a comment up to the end of the line.
_WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<word>(?:[^\s"']|"[^"]*"|'[^']*')+))""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_MAX_BYTES = 1 << 20
"""Maximum size of a host file: enough for 10,000 hosts with 100 characters each."""
_MAX_NUMBERS = {"slots": MAX_SLOTS, "max_slots": 999_999_999, "port": 65535}
"""Maximum of each numeric key. max_slots may exceed the slots of a host by far."""
_TEXT_KEYS = ("user", "key", "python", "directory", "interface")
_KEYS = "slots, max_slots, user, port, key, python, directory, interface, env.NAME"


def read_host_file(path: Path) -> tuple[Host, ...]:
    """Read a host file, and return its distinct hosts in the order of their first lines.

    Raises
    ------
    UsageError
        The file cannot be read, names no host, or has an invalid line.
    """
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
    hosts: dict[Identity, Host] = {}
    limits: dict[Identity, int] = {}
    for line_number, line in enumerate(content.split("\n"), 1):
        try:
            words = _words(line)
            if words:
                _add_line(words, hosts, limits)
        except UsageError as error:
            raise UsageError(f"host file {path}, line {line_number}: {error}") from None
    if not hosts:
        raise UsageError(
            f"host file {path}: it names no host. Write one per line, such as vm1 slots=2."
        )
    _log.debug("Read %d hosts from host file %s", len(hosts), path)
    return tuple(hosts.values())


def _words(line: str) -> list[str]:
    """Return the words of a line without its comment. Spaces within quotes belong to a word."""
    words: list[str] = []
    position = 0
    line = line.rstrip()
    while position < len(line):
        match = _WORD.match(line, position)
        if match is None:
            raise UsageError("a quote is not closed. Write the value between two equal quotes.")
        if match["comment"] is not None:
            break
        words.append(_QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", match["word"]))
        position = match.end()
    return words


def _add_line(words: list[str], hosts: dict[Identity, Host], limits: dict[Identity, int]) -> None:
    """Add the host of one line to `hosts`, and its max_slots to `limits`."""
    values = parse_host(words[0])
    limit = _read_keys(words[1:], values)
    host = Host(**values)
    identity = host.identity
    if identity in hosts:
        host = _merge(hosts[identity], host)
    limits[identity] = min(limit, limits.get(identity, MAX_SLOTS))
    if host.slots > limits[identity]:
        raise UsageError(
            f"{host.label}: {host.slots} slots, but max_slots={limits[identity]}. Write fewer "
            "slots, or raise max_slots."
        )
    hosts[identity] = host


def _read_keys(words: list[str], values: dict[str, Any]) -> int:
    """Parse ``key=value`` words, add their values to `values`, and return max_slots."""
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
        if key in _MAX_NUMBERS:
            values[key] = whole_number(key, value, _MAX_NUMBERS[key])
        elif key in _TEXT_KEYS:
            values[key] = value
        elif key.startswith("env."):
            environment[key.removeprefix("env.")] = value
        else:
            raise UsageError(f"{key!r}: unknown key. Known keys are {_KEYS}.")
    values["environment"] = environment
    return int(values.pop("max_slots", MAX_SLOTS))


def _merge(before: Host, after: Host) -> Host:
    """Merge two lines about one host: add their slots, and combine their other fields.

    Raises
    ------
    UsageError
        The lines give a field different values.
    """
    for field_name in ("key", "python", "directory", "interface"):
        first = getattr(before, field_name)
        second = getattr(after, field_name)
        if None not in (first, second) and first != second:
            raise UsageError(
                f"{after.label}: {field_name} is {first!r} in a line above and {second!r} here. "
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
