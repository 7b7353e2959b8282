"""Fill comments of pages with Markdown that is made from the code.

``<!-- generated: NAME -->`` is what `generate/NAME.py` makes, and ``<!-- generated: NAME WORD -->``
what it makes of a word.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_PLACE = re.compile(r"^<!-- generated: (\w+)((?: [\w.]+)*) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """Return the text of a page with each comment replaced."""
    return _PLACE.sub(lambda found: _made(found[1], found[2].split()), text)


def _made(name: str, words: list[str]) -> str:
    return str(importlib.import_module(f"generate.{name}").markdown(*words))


def _read(_app: Sphinx, _docname: str, source: list[str]) -> None:
    source[0] = fill(source[0])


def _outdated(_app: Sphinx, env: BuildEnvironment, *_changes: Any) -> list[str]:
    """Name the pages with generated parts: they depend on code, which Sphinx does not compare."""
    return [name for name in env.found_docs if _PLACE.search(env.doc2path(name).read_text("utf-8"))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", _read)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
