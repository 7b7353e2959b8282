"""What NCCL's own XML parser stops at, though any other would take it.

By `xmlGetNode` and `xmlGetToken` of NCCL's ``src/graph/xml``: between elements it knows
blanks and line ends, within one blanks alone, and a name that begins with ``?`` is no
element. NCCL then fails to start (``ncclInternalError``).
"""

from __future__ import annotations

import re

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'")
_BROKEN_TAG = re.compile(r"<[^>]*[\r\n]")


def objection(data: bytes) -> str:
    """Say why NCCL stops at a file that is otherwise well; empty where it does not."""
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "it begins with a byte order mark"
    text = data.decode("latin-1")
    bare = _VALUE.sub("''", _COMMENT.sub(_line_ends, text))
    if "<?" in bare:
        return f"line {_line(bare, '<?')} has an XML declaration (<?xml ...?>)"
    if "\t" in bare:
        return f"line {_line(bare, chr(9))} has a tab, where NCCL knows blanks only"
    broken = _BROKEN_TAG.search(bare)
    if broken:
        return f"line {_line(bare, broken[0])} begins an element that ends on another line"
    return ""


def _line(text: str, what: str) -> int:
    return text.count("\n", 0, text.index(what)) + 1


def _line_ends(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")
