"""Host files, as Horovod and Open MPI read them, and a little more."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.cluster.host import (
    MOST_SLOTS,
    Host,
    Identity,
    parse_host,
    whole_number,
)
from workbench.errors import UsageError
from workbench.safefiles import read_file

# One word of a host file's line, or a comment up to its end.
_WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<word>(?:[^\s"']|"[^"]*"|'[^']*')+))""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_MOST_BYTES = 1 << 20
"""A line of 100 characters for each of 10,000 hosts."""
_TEXT_KEYS = ("user", "python", "directory", "interface")
_KEYS = "slots, max_slots, user, port, python, directory, interface, env.NAME"


def read_host_file(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a host file, each once, in the order of its lines."""
    try:
        content = read_file(path, _MOST_BYTES).decode("utf-8-sig")
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


def _add(words: list[str], found: dict[Identity, Host], limits: dict[Identity, int]) -> None:
    """Add one line to the hosts and slot limits found so far."""
    values = parse_host(words[0])
    limit = _keys(words[1:], values)
    host = Host(**values)
    identity = host.identity
    if identity in found:
        host = _joined(found[identity], host)
    limits[identity] = min(limit, limits.get(identity, MOST_SLOTS))
    if host.slots > limits[identity]:
        raise UsageError(
            f"{host.label} has {host.slots} slots, and max_slots={limits[identity]} allows no "
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
            values[key] = whole_number(key, value, MOST_SLOTS)
        elif key == "max_slots":
            # More than we allow in slots is a limit that never binds.
            limit = whole_number(key, value, 999_999_999)
        elif key == "port":
            values[key] = whole_number(key, value, 65535)
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
                f"{after.label} has {what} {first!r} in a line above and {second!r} here: "
                "write it once"
            )
    for name, value in after.environment.items():
        if before.environment.get(name, value) != value:
            raise UsageError(f"{after.label} has another env.{name} in a line above: write it once")
    return replace(
        before,
        slots=before.slots + after.slots,
        python=before.python or after.python,
        directory=before.directory or after.directory,
        interface=before.interface or after.interface,
        environment={**before.environment, **after.environment},
    )
