"""An evidence bundle: one zip file with what is known about a failure, and what is missing."""

from __future__ import annotations

import json
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

FORMAT = 1
"""Format of the bundle; incremented when its parts change their meaning."""
MAX_PART_BYTES = 8 << 20
MAX_BYTES = 32 << 20
"""Most bytes of all parts before compression."""
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
    """The parts of a bundle in memory, for `write`.

    Attributes
    ----------
    reason
        Why it was made: a sentence.
    redactor
        Removes secrets from each text part.
    facts
        Further plain values of the manifest.
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
        """Add a text part, or note why it is missing; a long one is cut off, which is noted.

        One that is `numeric`, such as a CSV table, is not searched for secrets.
        """
        self._parts.pop(name, None)
        self._missing.pop(name, None)
        if isinstance(content, Unknown):
            self._missing[name] = content.reason
            return
        most = self._characters_left()
        if numeric:
            text, left_out = content[:most], max(0, len(content) - most)
        else:
            text, left_out = self.redactor.clean_start(content, most)
        if left_out:
            text += _CUT.format(left_out=left_out)
            self._cut.append(name)
        self._parts[name] = text, description

    def add_end(self, name: str, content: str, description: str, most: int) -> None:
        """Add the last `most` characters of a text, and say how many are left out."""
        text, left_out = self.redactor.clean_end(content, min(most, self._characters_left()))
        if left_out:
            text = f"... {left_out:,} earlier characters are left out ...\n{text}"
        self._parts[name] = text, description
        self._missing.pop(name, None)

    def add_json(self, name: str, content: Any | Unknown, description: str) -> None:
        """Add plain values as a JSON part, or note why they are missing or too large."""
        if isinstance(content, Unknown):
            self.add(name, content, description)
            return
        self._parts.pop(name, None)
        self._missing.pop(name, None)
        plain, left = json.dumps(content, default=str), self._characters_left()
        if len(plain) <= left:  # a longer one is not searched for secrets
            plain = self._clean_json(plain)
        if len(plain) > left:
            self._missing[name] = f"it has {len(plain):,} characters, which are too many"
        else:
            self._parts[name] = plain, description

    def _characters_left(self) -> int:
        """Return how many characters the next part may have."""
        used = sum(len(text) for text, _ in self._parts.values())
        return max(0, min(MAX_PART_BYTES, MAX_BYTES - used))

    def _clean_json(self, text: str) -> str:
        """Return JSON without secrets; a number that is not finite is null."""
        plain = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(self.redactor.clean_json(plain), indent=1) + "\n"

    def miss(self, name: str, why: str) -> None:
        """Note why a part is missing."""
        self.add(name, Unknown(why), "")

    @property
    def missing(self) -> dict[str, str]:
        """Why parts are missing, by their names."""
        return dict(self._missing)

    def write(self, path: Path) -> None:
        """Write the file atomically, readable by its owner only.

        Raises
        ------
        OSError
            It cannot be written; an existing file is then unchanged.
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
            "parts": {name: about for name, (_, about) in sorted(self._parts.items())},
            "missing": dict(sorted(self._missing.items())),
            "cut_off": self._cut,
        }
        return self._clean_json(json.dumps(manifest, default=str))

    def _readme(self) -> str:
        parts = sorted(self._parts.items())
        wide = max((len(name) for name in [*self._parts, *self._missing]), default=0)
        table = "\n".join(f"{name:<{wide}}  {about}" for name, (_, about) in parts)
        missing = "".join(f"{name:<{wide}}  {why}\n" for name, why in sorted(self._missing.items()))
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
    """Return the versions of this kernel, without importing any package."""
    found = {"workbench": __version__, "python": sys.version.split()[0]}
    found["system"] = f"{platform.system()} {platform.release()}"
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
