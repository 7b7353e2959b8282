"""One VM of a cluster: its fields, their checks, and its text form.

Names become arguments of ssh and of a remote shell. The checks reject text that ssh could read
as an option, or that the shell could run as code.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from workbench.errors import UsageError
from workbench.ranks import as_int

MAX_SLOTS = 1024
_MAX_PORT = 65535

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?")
_INTERFACE = re.compile(r"(?!-)[A-Za-z0-9_.:-]{1,15}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
# Matches user@name:port:slots before the checks. DOTALL lets the checks see newlines too.
_HOST_TEXT = re.compile(
    r"(?:(?P<user>[^@]*)@)?(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<slots>.*))?",
    re.DOTALL,
)
Identity = tuple[str, str | None, int | None]
"""The name, user and port: two hosts are the same if all three are equal."""


@dataclass(frozen=True)
class Host:
    """One VM of a cluster, with checked fields.

    Attributes
    ----------
    name
        Host name, alias of the ssh config, IPv4 or IPv6 address (without brackets).
    slots
        Number of ranks.
    user, port
        User and port of the ssh connection. None means that the ssh config decides.
    python
        Path of the Python interpreter on the VM.
    directory
        Working directory of the ranks.
    interface
        Network interface of the collectives.
    environment
        Environment variables of the ranks; read-only.
    key
        File with a private key for ssh. None means that the ssh config decides.
    alias
        The name that users see, if it differs from `name`. `parse_hosts` sets it if several hosts
        share a name.

    Raises
    ------
    UsageError
        The value of a field is invalid.

    Examples
    --------
    >>> host = Host("vm1", slots=2, user="me")
    >>> host.label
    'me@vm1'
    >>> Host("vm1", slots=0)
    Traceback (most recent call last):
        ...
    workbench.errors.UsageError: slots 0: must be a whole number from 1 to 1024.
    """

    name: str
    slots: int = 1
    user: str | None = None
    port: int | None = None
    python: str | None = None
    directory: str | None = None
    interface: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    key: str | None = None
    alias: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        object.__setattr__(self, "slots", _checked_number("slots", self.slots, MAX_SLOTS))
        if self.user is not None:
            _check_user(self.user)
        if self.port is not None:
            object.__setattr__(self, "port", _checked_number("port", self.port, _MAX_PORT))
        for field_name in ("key", "python", "directory"):
            if getattr(self, field_name) is not None:
                _check_text(field_name, getattr(self, field_name))
        if self.interface is not None:
            _check_interface(self.interface)
        _check_environment(self.environment)
        # Copy the dict: the caller could otherwise change a host after its checks.
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))

    @property
    def label(self) -> str:
        """The name, preceded by the user if the host has one: ``user@name``."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.user is None else f"{self.user}@{name}"

    @property
    def shown(self) -> str:
        """The name that messages and tables show."""
        return self.alias or self.name

    @property
    def full_label(self) -> str:
        """The label with the port; it is unique in a cluster."""
        return self.label if self.port is None else f"{self.label}:{self.port}"

    @property
    def identity(self) -> Identity:
        """The name, user and port."""
        return self.name, self.user, self.port

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as a dict of plain values, which are the arguments of `Host`."""
        plain = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return plain | {"environment": dict(self.environment)}

    def __reduce__(self) -> tuple[type[Host], tuple[Any, ...]]:
        # A mapping proxy cannot be pickled or deep-copied; a dict can.
        return Host, tuple(self.to_plain().values())


def parse_host(text: str) -> dict[str, Any]:
    """Parse ``user@name:slots``, ``user@name:port`` or ``name:port:slots``.

    Returns
    -------
    dict
        Arguments of `Host`: only those that the text contains.

    Raises
    ------
    UsageError
        The text has none of these forms, or the number of slots is invalid.

    Examples
    --------
    >>> parse_host("vm1:2")
    {'name': 'vm1', 'slots': 2}
    >>> parse_host("me@vm1:2222")
    {'name': 'vm1', 'user': 'me', 'port': 2222}
    """
    if not text:
        raise UsageError("no host before or after a comma. Write one, or remove the comma.")
    match = _HOST_TEXT.fullmatch(text)
    if match is None:
        raise UsageError(_not_a_host(text))
    user, ipv6, name, port_and_slots = match.group("user", "ipv6", "name", "slots")
    if ipv6 is not None and ":" not in ipv6:
        raise UsageError(_not_a_host(text))
    values: dict[str, Any] = {"name": name if ipv6 is None else ipv6}
    if user is not None:
        values["user"] = user
    if port_and_slots is None:
        return values
    first, colon, slots = port_and_slots.partition(":")
    if _is_port(first) and (colon or user is not None):
        values["port"] = int(first)
    else:
        slots = port_and_slots
        colon = ":"
    if colon:
        try:
            values["slots"] = whole_number("slots", slots, MAX_SLOTS)
        except UsageError as error:
            raise UsageError(
                f"{text!r}: {error} After the colon are the slots, not the port, which is written "
                f"before them (vm1:2222:4) and is above {MAX_SLOTS}; an IPv6 address needs "
                "brackets."
            ) from None
    return values


def _is_port(digits: str) -> bool:
    """Return whether a number can only be a port, because it exceeds the slots of any VM."""
    return bool(_NUMBER.fullmatch(digits)) and MAX_SLOTS < int(digits) <= _MAX_PORT


def whole_number(name: str, digits: str, maximum: int) -> int:
    """Parse a whole number from 1 to `maximum`; `name` is the field in the error message.

    Raises
    ------
    UsageError
        The text is not a number, or the number is out of range.

    Examples
    --------
    >>> whole_number("slots", "4", 1024)
    4
    """
    # int() would also accept "+2", "1_0" and the digits of other scripts.
    value = int(digits) if _NUMBER.fullmatch(digits) else digits
    return _checked_number(name, value, maximum)


def _not_a_host(text: str) -> str:
    return (
        f"{text!r}: not a host. Write name, name:slots, user@name:slots or name:port:slots, with "
        "an IPv6 address in brackets, such as [fd00::1]:2."
    )


# Checks of the fields. Users may pass objects of any type.


def _check_name(name: object) -> None:
    if isinstance(name, str):
        if _NAME.fullmatch(name):
            return
        if _IPV6.fullmatch(name) and _is_ipv6(name):
            return
    raise UsageError(
        f"{name!r}: not a host name. Write letters, digits and . _ - without . or - at the "
        "beginning, or an IP address; slots, user and port are fields of their own."
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
            f"{user!r}: not a user name. Write letters, digits and . _ - without . or - at the "
            "beginning."
        )


def _checked_number(name: str, value: object, maximum: int) -> int:
    number = as_int(value)
    if number is None or not 1 <= number <= maximum:
        raise UsageError(f"{name} {value!r}: must be a whole number from 1 to {maximum}.")
    return number


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{name}: {type(value).__name__}, not text. Write text.")
    if not value or any(mark in value for mark in "\0\n\r"):
        problem = "contains a NUL or a line break" if value else "empty"
        raise UsageError(f"{name}: {problem}. Write one line of text, or leave {name} out.")


def _check_interface(interface: object) -> None:
    if not isinstance(interface, str) or not _INTERFACE.fullmatch(interface):
        raise UsageError(
            f"{interface!r}: not a network interface. Write one as `ip link` shows it, such as "
            "eth0: at most 15 letters, digits and _ . : -"
        )


def _check_environment(environment: object) -> None:
    if not isinstance(environment, Mapping):
        raise UsageError(
            f"environment: {type(environment).__name__}, not a mapping. "
            'Write one, such as {"OMP_NUM_THREADS": "4"}.'
        )
    for name, value in environment.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"{name!r}: not an environment variable. Write letters, digits and _, "
                "without a digit at the beginning."
            )
        # An empty value is valid. A value can be a secret, so no message shows it.
        if value != "":
            _check_text(f"environment variable {name}", value)
