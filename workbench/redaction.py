"""Defines what counts as a secret, and removes it from text that users pass on.

The time grows linearly with the text, whatever it has: each pattern begins at a fixed word, and
none can pass the same characters again for another beginning, or only a limited number of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
OVERLAP = 1 << 16
"""Characters beyond a cut that are searched, because a secret may lie across it."""
_KEYWORD = re.compile(
    r"secret|token(?!s|i[sz])|passw(?:or)?d|passphrase|credential|api[_-]?key|[_-]key|"
    r"authorization|cookie|session[_-]?id",
    re.IGNORECASE,
)
_REST_OF_NAME = re.compile(r"[\w.-]*")
_LITERAL = (
    r"[bfru]{0,2}(?:"
    r'"{3}[^"\n]+"*|"[^"\n]+(?:"|\Z)|' + r"'{3}[^'\n]+'*|'[^'\n]+(?:'|\Z))"
)
"""A value in quotes, which need not be closed at the end of the text or in several lines."""
_WORD = r"(?=[^\s\"',;]{0,128}\d)[\w+/=~.-]{8,}"
"""A value without quotes; one without a digit is rather the name of a variable."""
_VALUE = re.compile(rf"\\?[\"']?\]?\s*[=:]\s*\\?(?P<value>{_LITERAL}|{_WORD})", re.IGNORECASE)
_OPTION_VALUE = re.compile(rf"[\"']?,?[ \t]+(?!-)(?P<value>{_LITERAL}|[^\s\"']+)", re.IGNORECASE)
"""What follows the name of an option such as ``--password``."""
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # a header, whatever its scheme
        (
            r"(?P<name>\bAuthorization[\"']?\s*[:=]\s*[\"']?)"
            r"(?!<removed>)(?:Digest [^\n]*|[^\s\"',;]+(?:[ \t]+[^\s\"',;]+)?)"
        ),
        r"(?P<name>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}",
        # before the host of a URL; digits after a colon and before a path are a port
        (
            r"(?P<name>://)(?:[^\s/@:\"'<>]*:(?!\d{1,5}[/?#])(?:[^\s@\"'<>:]|:(?!//))*|"
            r"[^\s/@:\"'<>?#]+)(?:@[^\s/@\"'<>]+)*(?=@)"
        ),
        # curl's user and password
        r"(?P<name>(?<![\w-])(?:-u|--user|--proxy-user)[ \t=]+[\"']?[^\s:\"']{1,128}:)[^\s\"']+",
    )
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_PEM_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_OF_A_KEY = re.compile(r"[ \t>]*[\w+/=\\]*[ \t\r]*")
"""A line within a private key, possibly quoted."""
_SHORTEST = 6
"""A shorter value is not searched for: it would be found in unrelated text."""


class Redactor:
    """Replaces secrets in text by `REMOVED`.

    It knows the values of the environment variables of this process, and of `environments`, whose
    names say that they are secret. In addition, it recognizes assignments to such names, values of
    such options, private keys, authorization headers, and users and passwords in URLs.

    Parameters
    ----------
    environments
        Environment variables that the ranks have in addition.
    secrets
        Further values, whatever their name.
    """

    def __init__(
        self, environments: Iterable[Mapping[str, str]] = (), secrets: Iterable[str] = ()
    ) -> None:
        values = {text for text in secrets if len(text) >= _SHORTEST}
        for environment in (os.environ, *environments):
            values |= secret_values(environment)
        longest_first = sorted(values, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def clean_json(self, content: Any) -> Any:
        """Return JSON values without secrets."""
        if isinstance(content, str):
            return self.clean(content)
        if isinstance(content, dict):
            return {
                name: REMOVED if isinstance(one, str) and _is_secret(name) else self.clean_json(one)
                for name, one in content.items()
            }
        return [self.clean_json(one) for one in content] if isinstance(content, list) else content

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = _without_ends_of_keys(_PEM.sub(REMOVED, text))
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern in _PATTERNS:
            text = pattern.sub(_removed, text)
        return _without_named(text)

    def clean_start(self, text: str, most: int) -> tuple[str, int]:
        """Return at most `most` characters of the start without secrets, and how many more are."""
        searched = text[: most + OVERLAP]
        if len(searched) < len(text):  # half a line may have half a secret
            searched = searched[: searched.rfind("\n", most) + 1 or None]
        cleaned = self.clean(searched)
        return cleaned[:most], len(text) - len(searched) + max(0, len(cleaned) - most)

    def clean_end(self, text: str, most: int) -> tuple[str, int]:
        """Return at most `most` characters of the end without secrets, and how many are before."""
        searched = text[max(0, len(text) - most - OVERLAP) :]
        if len(searched) < len(text):
            searched = searched[searched.find("\n", 0, OVERLAP) + 1 :]
        cleaned = self.clean(searched)
        before = max(0, len(cleaned) - most)
        return cleaned[before:], len(text) - len(searched) + before


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """Return the values of environment variables whose names say that they are secret.

    Without short ones, and paths of files on this machine.
    """
    return {
        text
        for name, text in environment.items()
        if _is_secret(name) and len(text) >= _SHORTEST and not _is_file(text)
    }


def _is_secret(name: str) -> bool:
    return _KEYWORD.search(name) is not None and _REST_OF_NAME.fullmatch(name) is not None


def _removed(found: re.Match[str]) -> str:
    return found["name"] + REMOVED


def _without_named(text: str) -> str:
    """Return the text without the values of secret names and options."""
    pieces, kept, passed = [], 0, 0
    for found in _KEYWORD.finditer(text):
        if found.start() < passed:  # in the same name, or in a value
            continue
        rest = _REST_OF_NAME.match(text, found.end())
        assert rest is not None
        dashes = text.rfind("--", passed, found.start())
        is_option = dashes >= 0 and _REST_OF_NAME.fullmatch(text, dashes, found.start()) is not None
        passed = rest.end()
        value = _VALUE.match(text, passed)
        if value is None and is_option:
            value = _OPTION_VALUE.match(text, passed)
        if value is not None:
            pieces += [text[kept : value.start("value")], REMOVED]
            kept = passed = value.end()
    return "".join([*pieces, text[kept:]])


def _without_ends_of_keys(text: str) -> str:
    """Return the text without the ends of private keys whose beginnings are cut off."""
    pieces, kept = [], 0
    for found in _PEM_END.finditer(text):
        start = found.start()
        while start > kept:
            line = max(kept, text.rfind("\n", kept, start - 1) + 1)
            if _OF_A_KEY.fullmatch(text, line, start - (text[start - 1] == "\n")) is None:
                break
            start = line
        else:
            start = kept
        pieces += [text[kept:start], REMOVED]
        kept = found.end()
    return "".join([*pieces, text[kept:]])


def _is_file(text: str) -> bool:
    """Whether a value is the path of a file, which is no secret."""
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False
