"""The zip file of an evidence bundle: its parts, and the reasons for missing parts."""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.redaction import REMOVED, Redactor
from workbench.resources.unknown import Unknown
from workbench.safefiles import make_private_folder

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the bundle's format. Increment it when a part changes its meaning."""
MAX_PART_BYTES = 8 << 20
"""Maximum size of one part before compression."""
MAX_BYTES = 32 << 20
"""Maximum size of all parts before compression."""
_PACKAGES = ("torch", "horovod", "ipyparallel", "ipykernel", "jupyterlab", "numpy")
_CUT = "\n... cut off: {left_out:,} further characters ...\n"
_README = """Evidence bundle of Gradient Workbench {version}

{reason}
Written {written}.

{table}
{missing}
Times are in seconds since the epoch (UTC) unless a name says otherwise. manifest.json has the same
list for programs. Values that look like passwords, keys or tokens were replaced by {removed}; check
the files before you pass them on, because code and messages can contain other private data.
"""


@dataclass
class Bundle:
    """A bundle in memory: `write` writes its parts to a zip file.

    Attributes
    ----------
    reason
        A sentence that says why the bundle was made.
    redactor
        Removes secrets from each text part.
    facts
        Further JSON values of the manifest.

    Examples
    --------
    >>> bundle = Bundle("Made on demand.", Redactor())
    >>> bundle.add("notes.txt", "rank 1 was lost", "what happened")
    >>> bundle.mark_missing("output.txt", "no cell runs")
    >>> bundle.missing
    {'output.txt': 'no cell runs'}
    """

    reason: str
    redactor: Redactor
    facts: Mapping[str, Any] = field(default_factory=dict)
    _parts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Content and description of each part, by its name."""
    _missing: dict[str, str] = field(default_factory=dict)
    _cut: list[str] = field(default_factory=list)

    def add(
        self, name: str, content: str | Unknown, description: str, *, numeric: bool = False
    ) -> None:
        """Add a text part, or record why it is missing.

        A text that exceeds the size limits is cut off. The part and the manifest say so.

        Parameters
        ----------
        name
            Path of the part within the zip file.
        content
            The text; `Unknown` has the reason why it is missing.
        description
            What the part contains, for the table of contents.
        numeric
            Whether the text has only numbers, as a CSV table. It is not searched for secrets then.
        """
        self._parts.pop(name, None)
        self._missing.pop(name, None)
        if isinstance(content, Unknown):
            self._missing[name] = content.reason
            return
        max_characters = self._characters_left()
        if numeric:
            text = content[:max_characters]
            left_out = max(0, len(content) - max_characters)
        else:
            text, left_out = self.redactor.clean_start(content, max_characters)
        if left_out:
            text += _CUT.format(left_out=left_out)
            self._cut.append(name)
        self._parts[name] = text, description

    def add_end(self, name: str, content: str, description: str, max_characters: int) -> None:
        """Add the last `max_characters` of a text; the part says how many are left out."""
        text, left_out = self.redactor.clean_end(
            content, min(max_characters, self._characters_left())
        )
        if left_out:
            text = f"... {left_out:,} earlier characters are left out ...\n{text}"
        self._parts[name] = text, description
        self._missing.pop(name, None)

    def add_json(self, name: str, content: Any | Unknown, description: str) -> None:
        """Add JSON values as a part, or record why the part is missing or too large."""
        if isinstance(content, Unknown):
            self.add(name, content, description)
            return
        self._parts.pop(name, None)
        self._missing.pop(name, None)
        text = json.dumps(content, default=str)
        max_characters = self._characters_left()
        if len(text) <= max_characters:  # longer JSON is not searched for secrets: it is left out
            text = self._clean_json(text)
        if len(text) > max_characters:
            self._missing[name] = f"it has {len(text):,} characters, which are too many"
        else:
            self._parts[name] = text, description

    def _characters_left(self) -> int:
        """Return the maximum number of characters of the next part."""
        used = sum(len(text) for text, _ in self._parts.values())
        return max(0, min(MAX_PART_BYTES, MAX_BYTES - used))

    def _clean_json(self, text: str) -> str:
        """Remove secrets from JSON text, and replace numbers that are not finite by null."""
        plain = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(self.redactor.clean_json(plain), indent=1) + "\n"

    def mark_missing(self, name: str, reason: str) -> None:
        """Record why a part is missing."""
        self.add(name, Unknown(reason), "")

    @property
    def missing(self) -> dict[str, str]:
        """The reason why a part is missing, by the name of the part."""
        return dict(self._missing)

    def write(self, path: Path) -> None:
        """Write the zip file atomically. Only its owner can read it.

        Raises
        ------
        OSError
            The file cannot be written. An existing file is then unchanged.
        """
        make_private_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with (
                os.fdopen(os.open(temporary, flags, 0o600), "wb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                archive.writestr("README.txt", self._readme())
                archive.writestr("manifest.json", self._manifest())
                for name, (text, _) in sorted(self._parts.items()):
                    archive.writestr(name, text.encode("utf-8", "backslashreplace"))
            temporary.replace(path)
            _log.info(
                "Wrote evidence bundle %s (%d parts, %d missing)",
                path,
                len(self._parts),
                len(self._missing),
            )
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _manifest(self) -> str:
        manifest = {
            "format": FORMAT,
            "reason": self.reason,
            "written_s": time.time(),
            "versions": _versions(),
            **self.facts,
            "parts": {name: description for name, (_, description) in sorted(self._parts.items())},
            "missing": dict(sorted(self._missing.items())),
            "cut_off": self._cut,
        }
        return self._clean_json(json.dumps(manifest, default=str))

    def _readme(self) -> str:
        parts = sorted(self._parts.items())
        width = max((len(name) for name in [*self._parts, *self._missing]), default=0)
        table = "\n".join(f"{name:<{width}}  {description}" for name, (_, description) in parts)
        missing = "".join(
            f"{name:<{width}}  {reason}\n" for name, reason in sorted(self._missing.items())
        )
        text = _README.format(
            version=__version__,
            reason=self.reason,
            written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            table=table,
            missing=f"\nNot in this bundle, and why:\n\n{missing}" if missing else "",
            removed=REMOVED,
        )
        return self.redactor.clean(text)


def _versions() -> dict[str, str]:
    """Return the versions of this kernel's packages, without importing the packages."""
    versions = {"workbench": __version__, "python": sys.version.split()[0]}
    versions["system"] = f"{platform.system()} {platform.release()}"
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
