"""Damaged and hostile content, by seed: what no reader of the product may stumble over."""

from __future__ import annotations

import copy
import json
import random
import unicodedata
from collections.abc import Iterator
from typing import Any

TEXTS = (
    "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "\x9b31m", "\x7f\x00\r\n", "\ud800", "",
    "A" * 9_000, "%s%n{0}", "<script>alert(1)</script>",
    "../../etc/passwd", "é\u0301\u200b", "²", "٣",
)  # fmt: skip
RAW = ("1" + "0" * 400, "-" + "9" * 30, "NaN", "-Infinity", "1e999", "18446744073709551616",
       "1e308", "-0.0", "[" * 5_000, '{"a": 1, "a": 2}')  # fmt: skip
PLAIN = (None, True, False, 0, -1, 10**19, 0.5, [], {}, [[]], [None], [0] * 70_000, {"unknown": 5},
         {"unknown": "\x1b[31mred"}, {"unknown": "x", "more": 1})  # fmt: skip


def mutated_json(plain: Any, seed: int) -> str:
    """The JSON text of `plain` with one to three values put in another's place, or left out."""
    random_ = random.Random(seed)
    plain = copy.deepcopy(plain)
    raw: dict[str, str] = {}
    for _ in range(random_.randint(1, 3)):
        place, key = random_.choice(list(places(plain)))
        kind = random_.random()
        if kind < 0.5:
            place[key] = _alike(place[key], random_)
        elif kind < 0.6:
            raw[f"@{len(raw)}@"] = random_.choice(RAW)
            place[key] = f"@{len(raw) - 1}@"
        elif kind < 0.75:
            place[key] = random_.choice(TEXTS)
        elif kind < 0.9:
            place[key] = copy.deepcopy(random_.choice(PLAIN))
        elif isinstance(place, dict):
            del place[key]
        else:
            place.append(copy.deepcopy(place[key]))
    text = json.dumps(plain)
    for mark, value in raw.items():
        text = text.replace(f'"{mark}"', value)
    return text


def mutated_bytes(data: bytes, seed: int) -> bytes:
    """The bytes with some flipped, cut off, put in or said twice."""
    random_ = random.Random(seed)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(data) + 1)
        kind = random_.randrange(5)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + random_.randbytes(random_.randint(1, 9)) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + random_.randint(1, 99) :]
        elif kind == 3:
            end = at + random_.randint(1, 200)
            data = data[:end] + data[at:end] + data[end:]
        else:
            data = data[:at] + bytes([random_.randrange(256)]) + data[at + 1 :]
    return data


def _alike(value: Any, random_: random.Random) -> Any:
    """Another value of the same type: such are accepted, and must then be shown."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return random_.choice((0, -1, 1, 2, 255, 10**6, 2**63, 2**64, -(2**40), 0.5))
    if isinstance(value, str):
        return random_.choice((*TEXTS[:6], "x", value[::-1], "NODE", "mig", "up", "gpu", "-1"))
    if isinstance(value, list):
        return random_.choice(([], value * 2, value[1:], value[::-1]))
    return random_.choice(({"unknown": "\x1b[1m\u202e"}, dict(list(value.items())[1:])))


def places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each value in nested lists and dictionaries, as its container and its key there."""
    if isinstance(plain, dict | list):
        for key in list(plain) if isinstance(plain, dict) else range(len(plain)):
            yield plain, key
            yield from places(plain[key])


def controls(text: str) -> set[str]:
    """Return the characters that a terminal would obey or not show, except line ends."""
    return {
        repr(one)
        for one in text
        if one not in "\n\t" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
