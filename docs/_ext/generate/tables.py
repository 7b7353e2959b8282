"""Markdown of tables and of text that is not Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown, and line breaks in them are blanks."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as inline code."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a text of the program as Markdown: literal but for what is in backticks."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _literal(part) for part in parts)


def _literal(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]#$~^{}])", r"\\\1", text)
