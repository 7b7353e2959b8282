"""Hosts: which VMs a cluster runs on, as users write it.

Names end up in the arguments of ssh and in lines for a shell on the other side.
Whatever could be an option or shell text there is refused here, once.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.errors import UsageError

MOST_SLOTS = 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?")
_INTERFACE = re.compile(r"(?!-)[A-Za-z0-9_.:-]{1,15}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
# user@name:slots, nothing checked yet; DOTALL so that a newline reaches the check too.
_ITEM = re.compile(
    r"(?:(?P<user>[^@]*)@)?(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<slots>.*))?",
    re.DOTALL,
)
# One word of a host file's line, or a comment up to its end.
_WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<word>(?:[^\s"']|"[^"]*"|'[^']*')+))""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_TEXT_KEYS = ("user", "python", "directory", "interface")
_KEYS = "slots, max_slots, user, port, python, directory, interface, env.NAME"
_Identity = tuple[str, str | None, int | None]


@dataclass(frozen=True)
class Host:
    """One VM of a cluster; what it holds has been checked.

    Attributes
    ----------
    name
        Host name, alias of the ssh config, IPv4 or IPv6 address (without brackets).
    slots
        Ranks that run there.
    user, port
        Of the ssh connection; None leaves it to the ssh config.
    python
        Interpreter there.
    directory
        Working directory there.
    interface
        Network interface of the collectives there.
    environment
        Variables of the ranks there; read-only.

    Raises
    ------
    UsageError
        A field has a value that it cannot have.
    """

    name: str
    slots: int = 1
    user: str | None = None
    port: int | None = None
    python: str | None = None
    directory: str | None = None
    interface: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_number("slots", self.slots, MOST_SLOTS)
        if self.user is not None:
            _check_user(self.user)
        if self.port is not None:
            _check_number("port", self.port, 65535)
        for what in ("python", "directory"):
            if getattr(self, what) is not None:
                _check_text(what, getattr(self, what))
        if self.interface is not None:
            _check_interface(self.interface)
        _check_environment(self.environment)
        # A copy, so that the caller's dict cannot change a checked host.
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values, from which `Host` makes the same."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {"environment": dict(self.environment)}

    def __reduce__(self) -> tuple[type[Host], tuple[Any, ...]]:
        # a mapping proxy cannot be pickled or deep-copied; a dict can
        return Host, tuple(self.to_plain().values())


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
        return _read(path)
    items: list[object]
    if isinstance(hosts, str):
        asked = f"hosts {hosts!r} were asked for"
        items = [part.strip() for part in hosts.split(",")] if hosts.strip() else []
    else:
        asked = "a list of hosts was given"
        items = _items(hosts)
    if not items:
        raise UsageError(f"{asked}: no host named; write hosts and slots, such as vm1:2,vm2:2")
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
    return ",".join(f"{_label(host)}:{host.slots}" for host in hosts)


def total_slots(hosts: Iterable[Host]) -> int:
    """Return how many ranks fit on all hosts together."""
    return sum(host.slots for host in hosts)


def _label(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    return name if host.user is None else f"{host.user}@{name}"


def _identity(host: Host) -> _Identity:
    return host.name, host.user, host.port


# What one field may hold. The parameters are objects: users pass anything.


def _check_name(name: object) -> None:
    if isinstance(name, str):
        if _NAME.fullmatch(name):
            return
        if _IPV6.fullmatch(name) and _is_ipv6(name):
            return
    raise UsageError(
        f"{name!r} is no host name: write a name of letters, digits and . _ - that does not "
        "begin with . or -, or an IP address; slots, user and port have fields of their own"
    )


def _is_ipv6(name: str) -> bool:
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True


def _check_user(user: object) -> None:
    if not isinstance(user, str) or not _NAME.fullmatch(user):
        raise UsageError(
            f"{user!r} is no user name: write letters, digits and . _ -, "
            "with neither . nor - at the beginning"
        )


def _check_number(what: str, value: object, most: int) -> None:
    # True is an int to Python, and 1 slot to nobody.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} {value!r}: write a whole number from 1 to {most}")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{what} is a {type(value).__name__}: write it as text")
    if not value or any(mark in value for mark in "\0\n\r"):
        found = f"{what} has a NUL or a line break" if value else f"{what} is empty"
        raise UsageError(f"{found}: write one line of text, or leave {what} out")


def _check_interface(interface: object) -> None:
    if not isinstance(interface, str) or not _INTERFACE.fullmatch(interface):
        raise UsageError(
            f"{interface!r} is no network interface: write one as `ip link` shows it, such as "
            "eth0; at most 15 letters, digits and _ . : -"
        )


def _check_environment(environment: object) -> None:
    if not isinstance(environment, Mapping):
        raise UsageError(
            f"environment is a {type(environment).__name__}: "
            'write a mapping, such as {"OMP_NUM_THREADS": "4"}'
        )
    for name, value in environment.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"{name!r} is no environment variable: write letters, digits and _, "
                "with no digit at the beginning"
            )
        # An empty variable means something. A value can be a secret: no message shows it.
        if value != "":
            _check_text(f"environment variable {name}", value)


# Texts, lists and mappings.


def _items(hosts: object) -> list[object]:
    # Iterating over these gives something, but no hosts.
    if isinstance(hosts, Mapping | bytes | Host) or not isinstance(hosts, Iterable):
        raise UsageError(
            f"hosts were asked for with a {type(hosts).__name__}: write text such as vm1:2,vm2:2, "
            "the path of a host file, or a list of texts, Host objects or mappings"
        )
    return list(hosts)


def _host(item: object) -> Host:
    if isinstance(item, Host):
        return item
    if isinstance(item, str):
        return Host(**_parse(item.strip()))
    if isinstance(item, Mapping):
        known = [each.name for each in fields(Host)]
        unknown = [key for key in item if key not in known]
        if unknown:
            raise UsageError(f"a host has no field {unknown[0]!r}: known are {', '.join(known)}")
        if "name" not in item:
            raise UsageError('a host has no name: write one, such as {"name": "vm1", "slots": 2}')
        values: dict[str, Any] = dict(item)
        return Host(**values)
    raise UsageError(
        f"{item!r} is no host: write text such as vm1:2, a Host, or a mapping with a name"
    )


def _parse(item: str) -> dict[str, Any]:
    """Return the fields that ``user@name:slots`` gives."""
    if not item:
        raise UsageError("there is nothing before or after a comma: write a host, or no comma")
    found = _ITEM.fullmatch(item)
    if found is None:
        raise UsageError(_not_a_host(item))
    user, ipv6, name, slots = found.group("user", "ipv6", "name", "slots")
    if ipv6 is not None and ":" not in ipv6:
        raise UsageError(_not_a_host(item))
    values: dict[str, Any] = {"name": name if ipv6 is None else ipv6}
    if user is not None:
        values["user"] = user
    if slots is not None:
        try:
            values["slots"] = _number("slots", slots, MOST_SLOTS)
        except UsageError as error:
            raise UsageError(
                f"{item!r}: {error}; behind the colon are the slots, not the port, and an IPv6 "
                "address stands in brackets"
            ) from None
    return values


def _not_a_host(item: str) -> str:
    return (
        f"{item!r} is no host: write name, name:slots or user@name:slots, "
        "and an IPv6 address in brackets, such as [fd00::1]:2"
    )


def _number(what: str, digits: str, most: int) -> int:
    # int() would also read "+2", "1_0" and the digits of other scripts.
    value = int(digits) if _NUMBER.fullmatch(digits) else digits
    _check_number(what, value, most)
    return int(value)


def _check_distinct(hosts: tuple[Host, ...]) -> None:
    for identity, count in Counter(map(_identity, hosts)).items():
        if count > 1:
            same = [host for host in hosts if _identity(host) == identity]
            slots, label = total_slots(same), _label(same[0])
            raise UsageError(
                f"{label} is named {'twice' if count == 2 else f'{count} times'}: "
                f"{label}:{slots} gives it {slots} slots"
            )


# Host files.


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


def _read(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a host file, each once, in the order of its lines."""
    try:
        content = path.expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            f"host file {path} was asked for: it is not UTF-8 text; "
            "write one host per line, such as vm1 slots=2"
        ) from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"host file {path} was asked for: {reason}; give the path of a file that can be read"
        ) from None
    found: dict[_Identity, Host] = {}
    limits: dict[_Identity, int] = {}
    for number, line in enumerate(content.split("\n"), 1):
        try:
            words = _words(line)
            if words:
                _add(words, found, limits)
        except UsageError as error:
            raise UsageError(f"host file {path}, line {number}: {error}") from None
    if not found:
        raise UsageError(
            f"host file {path} was asked for: it names no host; "
            "write one per line, such as vm1 slots=2"
        )
    return tuple(found.values())


def _words(line: str) -> list[str]:
    """Return the words of a line without its comment; quotes join what has blanks."""
    words: list[str] = []
    at, line = 0, line.rstrip()
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            raise UsageError("a quote is not closed: write the value between two of the same kind")
        if found["comment"] is not None:
            break
        words.append(_QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", found["word"]))
        at = found.end()
    return words


def _add(words: list[str], found: dict[_Identity, Host], limits: dict[_Identity, int]) -> None:
    """Add one line to the hosts and slot limits found so far."""
    values = _parse(words[0])
    limit = _keys(words[1:], values)
    host = Host(**values)
    identity = _identity(host)
    if identity in found:
        host = _joined(found[identity], host)
    limits[identity] = min(limit, limits.get(identity, MOST_SLOTS))
    if host.slots > limits[identity]:
        raise UsageError(
            f"{_label(host)} has {host.slots} slots, and max_slots={limits[identity]} allows no "
            "more than that: write fewer slots, or raise max_slots"
        )
    found[identity] = host


def _keys(words: list[str], values: dict[str, Any]) -> int:
    """Put the fields that ``key=value`` words give into `values`; return max_slots."""
    limit = MOST_SLOTS
    environment: dict[str, str] = {}
    seen = values.keys() - {"name"}
    for word in words:
        key, equals, value = word.partition("=")
        key = "max_slots" if key == "max-slots" else key
        if not equals:
            raise UsageError(f"{word!r} is no key=value: known keys are {_KEYS}")
        if key in seen:
            raise UsageError(f"{key} is given twice for one host: write it once")
        seen.add(key)
        if key == "slots":
            values[key] = _number(key, value, MOST_SLOTS)
        elif key == "max_slots":
            # More than we allow in slots is a limit that never binds.
            limit = _number(key, value, 999_999_999)
        elif key == "port":
            values[key] = _number(key, value, 65535)
        elif key in _TEXT_KEYS:
            values[key] = value
        elif key.startswith("env."):
            environment[key.removeprefix("env.")] = value
        else:
            raise UsageError(f"the key {key!r} is unknown: known are {_KEYS}")
    values["environment"] = environment
    return limit


def _joined(before: Host, after: Host) -> Host:
    """Return one host with the slots of two lines, and what either says beyond."""
    for what in ("python", "directory", "interface"):
        first, second = getattr(before, what), getattr(after, what)
        if None not in (first, second) and first != second:
            raise UsageError(
                f"{_label(after)} has {what} {first!r} in a line above and {second!r} here: "
                "write it once"
            )
    for name, value in after.environment.items():
        if before.environment.get(name, value) != value:
            raise UsageError(
                f"{_label(after)} has another env.{name} in a line above: write it once"
            )
    return replace(
        before,
        slots=before.slots + after.slots,
        python=before.python or after.python,
        directory=before.directory or after.directory,
        interface=before.interface or after.interface,
        environment={**before.environment, **after.environment},
    )
