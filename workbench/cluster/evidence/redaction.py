"""Removes secrets from text that users pass on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
_NAME = (
    r"[\w.-]*(?:secret|token(?!s|i[sz])|passw(?:or)?d|passphrase|credential|api[_-]?key|[_-]key|"
    r"authorization|cookie|session[_-]?id)[\w.-]*"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_LITERAL = r"""b?"[^"\n]+"|b?'[^'\n]+'"""
_WORD = r"(?=[^\s\"',;]*\d)[\w+/=~.-]{8,}"
"""A value without quotes; one without a digit is rather the name of a variable."""
_ASSIGNED = re.compile(
    rf"(?P<name>\b{_NAME}[\"']?\]?\s*[=:]\s*)(?P<value>{_LITERAL}|{_WORD})", re.IGNORECASE
)
_BEARER = re.compile(r"(?P<name>\b(?:Bearer|Basic)\s+)(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE)
_IN_URL = re.compile(r"(?P<name>\b\w+://[^\s/:@]+:)(?P<value>[^\s/@]+)(?=@)")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_SHORTEST = 6
"""A shorter value is not searched for: it would be found in unrelated text."""


class Redactor:
    """Replaces secrets in text by `REMOVED`.

    It knows the values of the environment variables of this process, and of `environments`, whose
    names say that they are secret. In addition, it recognizes assignments to such names, private
    keys, and passwords in URLs.

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
        values = {*secrets}
        for environment in (os.environ, *environments):
            values |= {text for name, text in environment.items() if _SECRET_NAME.fullmatch(name)}
        values = {text for text in values if len(text) >= _SHORTEST and not _is_file(text)}
        longest_first = sorted(values, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def clean_json(self, content: Any) -> Any:
        """Return JSON values without secrets."""
        if isinstance(content, str):
            return self.clean(content)
        if isinstance(content, dict):
            return {
                name: REMOVED
                if isinstance(one, str) and _SECRET_NAME.fullmatch(name)
                else self.clean_json(one)
                for name, one in content.items()
            }
        return [self.clean_json(one) for one in content] if isinstance(content, list) else content

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = _PEM.sub(REMOVED, text)
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern in (_ASSIGNED, _BEARER, _IN_URL):
            text = pattern.sub(rf"\g<name>{REMOVED}", text)
        return text


def _is_file(text: str) -> bool:
    """Whether a value is the path of a file, which is no secret."""
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False
