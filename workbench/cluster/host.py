"""One host of a cluster: what it may hold, and how it is written.

Names end up in the arguments of ssh and in lines for a shell on the other side.
Whatever could be an option or shell text there is refused here, once.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
Identity = tuple[str, str | None, int | None]
"""What makes two hosts the same."""


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

    @property
    def label(self) -> str:
        """Its name with its user, as people write it."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.user is None else f"{self.user}@{name}"

    @property
    def identity(self) -> Identity:
        """What makes it the same host as another."""
        return self.name, self.user, self.port

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values, from which `Host` makes the same."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {"environment": dict(self.environment)}

    def __reduce__(self) -> tuple[type[Host], tuple[Any, ...]]:
        # a mapping proxy cannot be pickled or deep-copied; a dict can
        return Host, tuple(self.to_plain().values())


def parse_host(item: str) -> dict[str, Any]:
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
            values["slots"] = whole_number("slots", slots, MOST_SLOTS)
        except UsageError as error:
            raise UsageError(
                f"{item!r}: {error}; behind the colon are the slots, not the port, and an IPv6 "
                "address stands in brackets"
            ) from None
    return values


def whole_number(what: str, digits: str, most: int) -> int:
    """Return the number from 1 to `most` that `digits` writes."""
    # int() would also read "+2", "1_0" and the digits of other scripts.
    value = int(digits) if _NUMBER.fullmatch(digits) else digits
    _check_number(what, value, most)
    return int(value)


def _not_a_host(item: str) -> str:
    return (
        f"{item!r} is no host: write name, name:slots or user@name:slots, "
        "and an IPv6 address in brackets, such as [fd00::1]:2"
    )


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
