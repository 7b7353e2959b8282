"""Frozen dataclasses as tables of their fields: what a file in JSON contains."""

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from generate.tables import code, prose, table

_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}


def records_of(root: type) -> list[type]:
    """Return a dataclass and those that its fields contain, each once, in order."""
    found = [root]
    for kind in found:
        for hint in get_type_hints(kind).values():
            found += [one for one in _classes(hint) if one not in found]
    return found


def markdown(name: str) -> str:
    """Return the tables of a dataclass, which is named with its module."""
    module, _, kind = name.rpartition(".")
    return sections(getattr(importlib.import_module(module), kind))


def sections(root: type, level: int = 3) -> str:
    """Return a table for a dataclass, and a section with one for each that it contains."""
    first, *others = records_of(root)
    parts = [_table(first, root)]
    for kind in others:
        title = f"({anchor(root, kind)})=\n{'#' * level} {kind.__name__}"
        parts += [title, prose(_summary(kind)), _table(kind, root)]
    return "\n\n".join(parts)


def anchor(root: type, kind: type) -> str:
    """Return the label of the section about `kind` below `root`."""
    return f"{root.__name__}-{kind.__name__}".lower()


def _table(kind: type, root: type) -> str:
    hints, about = get_type_hints(kind), attributes(kind)
    rows = [
        (code(field.name), type_in_words(hints[field.name], root), about.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]
    return table(("field", "type", "meaning"), rows)


def attributes(kind: type) -> dict[str, str]:
    """Return the descriptions in the section Attributes of a docstring, as Markdown."""
    _, _, text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes\n----------\n")
    text = re.split(r"\n\n?\S.*\n-{3,}\n", text)[0]
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        elif line:
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: prose(text.replace("``", "`")) for name, text in found.items()}


def _summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("``", "`")


def type_in_words(hint: Any, root: type) -> str:
    """Return a type as it is in JSON, with links to the tables of records."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return " or ".join(dict.fromkeys(_one(option, root) for option in options))


def _one(option: Any, root: type) -> str:
    origin, inner = get_origin(option), get_args(option)
    if origin is typing.Literal:
        return " or ".join(code(str(value)) for value in inner)
    if origin in (tuple, list):
        kinds = dict.fromkeys(type_in_words(one, root) for one in inner if one is not ...)
        return f"array of {' and '.join(kinds)}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {type_in_words(inner[1], root)} by name"
    if isinstance(option, type) and issubclass(option, Enum):
        return " or ".join(code(str(one.value)) for one in option)
    if dataclasses.is_dataclass(option) and option.__name__ != "Unknown":
        return f"[{option.__name__}](#{anchor(root, option)})"
    return _WORDS.get(option, "unknown" if option.__name__ == "Unknown" else option.__name__)


def _classes(hint: Any) -> Iterator[type]:
    """Yield the dataclasses in a type; `Unknown` is a value of its own in JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint.__name__ != "Unknown":
        yield hint
    for inner in get_args(hint):
        yield from _classes(inner)
