"""The code blocks of Markdown pages, and where each says that it is not executed."""

import re
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT
from markdown_it import MarkdownIt

MARK = re.compile(r"<!--\s*not executed:\s*(.*?)\s*-->\s*\Z", re.DOTALL)
DIRECTIVES_WITH_CODE = {"{code-block}", "{code}", "{sourcecode}"}


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    `reason` is the text of its mark ``<!-- not executed: REASON -->`` on the line above, or None.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    """README.md, and all pages of docs/ that are kept in the repository."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, text=None):
    """The code blocks of a page; directives of MyST are none, unless they have code."""
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8") if text is None else text)
    found, mark, above = [], None, -1
    for token in tokens:
        if token.type == "html_block":
            mark = MARK.search(token.content)
            above = token.map[0] + token.content.count("\n")
        elif token.type == "fence":
            first, *more = [*token.info.split(), ""]
            if first.startswith("{") and first not in DIRECTIVES_WITH_CODE:
                continue
            language = more[0] if first.startswith("{") else first
            reason = mark[1] if mark and above == token.map[0] else None
            found.append(Block(page, token.map[0] + 1, language, token.content, reason))
    return found
