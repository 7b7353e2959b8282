"""The magics, from their parsers and docstrings."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from IPython.core.magic_arguments import MagicArgumentParser

from generate.options import arguments_of
from workbench.fabric_magics import FabricMagics
from workbench.magics import WorkbenchMagics


def markdown() -> str:
    """Return a section for each magic."""
    sections = []
    for name, (magic, prefixes) in magics().items():
        forms = " and ".join(f"`{prefix}{name}`" for prefix in prefixes)
        sections += [f"## {forms}", _as_markdown(_description(magic)), arguments_of(_parser(magic))]
    return "\n\n".join(sections)


def magics() -> dict[str, tuple[Callable[..., Any], list[str]]]:
    """Return the functions of the magics and their prefixes, by name."""
    found: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for owner in (WorkbenchMagics, FabricMagics):
        for kind, prefix in (("line", "%"), ("cell", "%%")):
            for name, function in owner.magics[kind].items():
                magic = getattr(owner, function) if isinstance(function, str) else function
                found.setdefault(name, (magic, []))[1].append(prefix)
    return found


def _parser(magic: Callable[..., Any]) -> MagicArgumentParser:
    return getattr(magic, "parser")  # noqa: B009 - what `magic_arguments` has added


def _description(magic: Callable[..., Any]) -> str:
    """Return the docstring that `magic_arguments` has put after the usage."""
    return inspect.cleandoc(_parser(magic).description or "")


def _as_markdown(text: str) -> str:
    """Return a docstring as Markdown: double backticks are single ones there."""
    return re.sub(r"``(.*?)``", r"`\1`", text, flags=re.DOTALL)
