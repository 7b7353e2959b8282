"""Find what NCCL's own XML parser rejects in otherwise valid XML.

In `xmlGetNode` and `xmlGetToken` of NCCL's ``src/graph/xml``, only blanks and line ends
may be between elements, only blanks within an element, and a name that begins with ``?``
is not an element. With such a file NCCL fails to start (``ncclInternalError``).
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'")
_BROKEN_TAG = re.compile(r"<[^>]*[\r\n]")


def objection(data: bytes) -> str:
    """Return why NCCL rejects a file; empty if it does not."""
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "it begins with a byte order mark"
    text = data.decode("latin-1")
    bare = _VALUE.sub("''", _COMMENT.sub(_line_ends, text))
    if "<?" in bare:
        return f"line {_line(bare, '<?')} has an XML declaration (<?xml ...?>)"
    if "\t" in bare:
        return f"line {_line(bare, chr(9))} has a tab, where NCCL only accepts blanks"
    broken = _BROKEN_TAG.search(bare)
    if broken:
        return f"line {_line(bare, broken[0])} begins an element that ends on another line"
    return ""


def _line(text: str, what: str) -> int:
    return text.count("\n", 0, text.index(what)) + 1


def _line_ends(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")
