"""Definition of secrets, and their removal from text that users pass on.

The time grows linearly with the length of any text: each pattern begins at a fixed word, and
matches that begin at different words examine the same characters only a limited number of times.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
OVERLAP = 1 << 16
"""Characters beyond a cut that are searched too, because a secret may lie across the cut."""
_KEYWORD = re.compile(
    r"secret|token(?!s|i[sz])|passw(?:or)?d|passphrase|credential|api[_-]?key|[_-]key|"
    r"authorization|cookie|session[_-]?id",
    re.IGNORECASE,
)
_NAME_REST = re.compile(r"[\w.-]*")
_QUOTED = (
    r"[bfru]{0,2}(?:"
    r'"{3}[^"\n]+"*|"[^"\n]+(?:"|\Z)|' + r"'{3}[^'\n]+'*|'[^'\n]+(?:'|\Z))"
)
"""A quoted value; its closing quotes may be missing at the end of the text, and after the first
line of a value in triple quotes."""
_UNQUOTED = r"(?=[^\s\"',;]{0,128}\d)[\w+/=~.-]{8,}"
"""A value without quotes. It has a digit, because a word without digits is more likely the name
of a variable."""
_VALUE = re.compile(rf"\\?[\"']?\]?\s*[=:]\s*\\?(?P<value>{_QUOTED}|{_UNQUOTED})", re.IGNORECASE)
_OPTION_VALUE = re.compile(rf"[\"']?,?[ \t]+(?!-)(?P<value>{_QUOTED}|[^\s\"']+)", re.IGNORECASE)
"""The value after the name of an option such as ``--password``."""
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A header with any authentication scheme.
        (
            r"(?P<name>\bAuthorization[\"']?\s*[:=]\s*[\"']?)"
            r"(?!<removed>)(?:Digest [^\n]*|[^\s\"',;]+(?:[ \t]+[^\s\"',;]+)?)"
        ),
        r"(?P<name>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}",
        # User and password before the host of a URL. Digits between a colon and a path are a port.
        (
            r"(?P<name>://)(?:[^\s/@:\"'<>]*:(?!\d{1,5}[/?#])(?:[^\s@\"'<>:]|:(?!//))*|"
            r"[^\s/@:\"'<>?#]+)(?:@[^\s/@\"'<>]+)*(?=@)"
        ),
        # The user and password of curl.
        r"(?P<name>(?<![\w-])(?:-u|--user|--proxy-user)[ \t=]+[\"']?[^\s:\"']{1,128}:)[^\s\"']+",
    )
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_PEM_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_KEY_LINE = re.compile(r"[ \t>]*[\w+/=\\]*[ \t\r]*")
"""A line within a private key, possibly quoted."""
_MIN_CHARACTERS = 6
"""Shorter values are not removed, because they also occur in unrelated text."""


class Redactor:
    """Replacement of secrets in text by `REMOVED`.

    A variable is secret if its name contains a word such as ``token`` or ``password``. The values
    of secret environment variables, of this process and of `environments`, are removed wherever
    they occur. Assignments to secret names, values of secret options, private keys, authorization
    headers, and users and passwords in URLs are recognized by their form.

    Parameters
    ----------
    environments
        Environment variables that the ranks have in addition to those of this process.
    secrets
        Further secret values.

    Examples
    --------
    >>> redactor = Redactor(secrets=["hunter22"])
    >>> redactor.clean("logged in with hunter22 at http://me:pass@node0/")
    'logged in with <removed> at http://<removed>@node0/'
    >>> redactor.clean_json({"api_key": "any", "loss": 0.5})
    {'api_key': '<removed>', 'loss': 0.5}
    """

    def __init__(
        self, environments: Iterable[Mapping[str, str]] = (), secrets: Iterable[str] = ()
    ) -> None:
        values = {text for text in secrets if len(text) >= _MIN_CHARACTERS}
        for environment in (os.environ, *environments):
            values |= secret_values(environment)
        longest_first = sorted(values, key=len, reverse=True)
        self._secret_pattern = (
            re.compile("|".join(map(re.escape, longest_first))) if values else None
        )

    def clean_json(self, content: Any) -> Any:
        """Return JSON values without secrets."""
        if isinstance(content, str):
            return self.clean(content)
        if isinstance(content, dict):
            return {
                name: REMOVED
                if isinstance(value, str) and _is_secret(name)
                else self.clean_json(value)
                for name, value in content.items()
            }
        return (
            [self.clean_json(value) for value in content] if isinstance(content, list) else content
        )

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = _without_key_ends(_PEM.sub(REMOVED, text))
        if self._secret_pattern is not None:
            text = self._secret_pattern.sub(REMOVED, text)
        for pattern in _PATTERNS:
            text = pattern.sub(_redacted_match, text)
        return _without_named_secrets(text)

    def clean_start(self, text: str, max_characters: int) -> tuple[str, int]:
        """Return the redacted start of a text, and the number of characters after it.

        The start has at most `max_characters`.
        """
        searched = text[: max_characters + OVERLAP]
        if len(searched) < len(text):  # A line that was cut may contain a part of a secret.
            searched = searched[: searched.rfind("\n", max_characters) + 1 or None]
        cleaned = self.clean(searched)
        return cleaned[:max_characters], len(text) - len(searched) + max(
            0, len(cleaned) - max_characters
        )

    def clean_end(self, text: str, max_characters: int) -> tuple[str, int]:
        """Return the redacted end of a text, and the number of characters before it.

        The end has at most `max_characters`.
        """
        searched = text[max(0, len(text) - max_characters - OVERLAP) :]
        if len(searched) < len(text):
            searched = searched[searched.find("\n", 0, OVERLAP) + 1 :]
        cleaned = self.clean(searched)
        before = max(0, len(cleaned) - max_characters)
        return cleaned[before:], len(text) - len(searched) + before


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """Return the values of the environment variables with secret names.

    Values of less than 6 characters and paths of files on this machine are left out.

    Examples
    --------
    >>> secret_values({"HF_TOKEN": "hf_abc123", "HOME": "/root", "MY_PASSWORD": "short"})
    {'hf_abc123'}
    """
    return {
        text
        for name, text in environment.items()
        if _is_secret(name) and len(text) >= _MIN_CHARACTERS and not _is_file(text)
    }


def _is_secret(name: str) -> bool:
    """Return whether the value of a variable, field or option of this name is a secret."""
    return _KEYWORD.search(name) is not None and _NAME_REST.fullmatch(name) is not None


def _redacted_match(match: re.Match[str]) -> str:
    return match["name"] + REMOVED


def _without_named_secrets(text: str) -> str:
    """Return the text without the values of secret names and options."""
    pieces = []
    copied_end = 0
    position = 0
    for keyword in _KEYWORD.finditer(text):
        if keyword.start() < position:  # This keyword is in the same name, or in a value.
            continue
        rest = _NAME_REST.match(text, keyword.end())
        assert rest is not None
        dashes = text.rfind("--", position, keyword.start())
        is_option = dashes >= 0 and _NAME_REST.fullmatch(text, dashes, keyword.start()) is not None
        position = rest.end()
        value = _VALUE.match(text, position)
        if value is None and is_option:
            value = _OPTION_VALUE.match(text, position)
        if value is not None:
            pieces += [text[copied_end : value.start("value")], REMOVED]
            copied_end = position = value.end()
    return "".join([*pieces, text[copied_end:]])


def _without_key_ends(text: str) -> str:
    """Return the text without the ends of private keys whose beginnings are cut off."""
    pieces = []
    copied_end = 0
    for key_end in _PEM_END.finditer(text):
        start = key_end.start()
        while start > copied_end:
            line_start = max(copied_end, text.rfind("\n", copied_end, start - 1) + 1)
            if _KEY_LINE.fullmatch(text, line_start, start - (text[start - 1] == "\n")) is None:
                break
            start = line_start
        else:
            start = copied_end
        pieces += [text[copied_end:start], REMOVED]
        copied_end = key_end.end()
    return "".join([*pieces, text[copied_end:]])


def _is_file(text: str) -> bool:
    """Return whether a value is the path of an existing file, which is not a secret."""
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):  # The path is too long, or contains NUL.
        return False
