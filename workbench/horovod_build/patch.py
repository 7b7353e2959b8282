"""A patch of Horovod's source: exact text replacements, and added files."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from workbench.horovod_build.failures import failed
from workbench.horovod_build.recipe import VERSION

REPOSITORY = "https://github.com/horovod/horovod/blob/v0.28.1"
_ADDED_FILES_FOLDER = Path("horovod/common")


@dataclass(frozen=True)
class Edit:
    """One exact replacement in a file of the unpacked source.

    Attributes
    ----------
    file
        Path relative to the source folder.
    old, new
        The original text and its replacement.
    times
        The number of times that `old` must occur in the file.
    """

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class SourcePatch:
    """A change of the unpacked source that is applied as a whole.

    Attributes
    ----------
    name
        Name in the wheel's record.
    defect
        The effect on a user without the patch.
    upstream
        URL of the defect in the upstream repository.
    edits
        The replacements, in their order.
    added
        Files that are copied to ``horovod/common`` of the source.
    """

    name: str
    defect: str
    upstream: str
    edits: tuple[Edit, ...]
    added: tuple[Path, ...] = ()

    def apply(self, source: Path) -> None:
        """Patch the folder `source`.

        Raises
        ------
        BuildFailed
            If a file cannot be read, or a text does not occur as often as expected. Files of
            this patch are then unchanged.

        Examples
        --------
        >>> import tempfile
        >>> patch = SourcePatch("greeting", "the greeting is wrong", REPOSITORY,
        ...                     edits=(Edit("main.cc", "Hallo", "Hello"),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "main.cc").write_text("Hallo")
        ...     patch.apply(Path(folder))
        ...     Path(folder, "main.cc").read_text()
        'Hello'
        """
        patched: dict[Path, bytes] = {}
        for edit in self.edits:
            path = source / edit.file
            patched[path] = self._replace(edit, patched.get(path) or self._read(path, edit))
        for path, content in patched.items():
            path.write_bytes(content)
        for file in self.added:
            shutil.copy(file, source / _ADDED_FILES_FOLDER)

    def digest(self) -> str:
        """Return a hash of the patch, which is a part of the wheel's key."""
        exact = [
            text for edit in self.edits for text in (edit.file, edit.old, edit.new, edit.times)
        ]
        digest = hashlib.sha256("\0".join(map(str, exact)).encode())
        for file in self.added:
            digest.update(b"\0" + file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:16]

    def _read(self, path: Path, edit: Edit) -> bytes:
        try:
            return path.read_bytes()
        except OSError:
            raise self._no_match(f"{edit.file} cannot be read.") from None

    def _replace(self, edit: Edit, content: bytes) -> bytes:
        count = content.count(edit.old.encode())
        if count != edit.times:
            raise self._no_match(
                f"{edit.file} contains the text to replace {count} times, not {edit.times}."
            )
        return content.replace(edit.old.encode(), edit.new.encode())

    def _no_match(self, mismatch: str) -> Exception:
        return failed(
            f"the patch `{self.name}` does not match this source: {mismatch}",
            f"It is written for Horovod {VERSION}. If recipe.py names another release, check "
            f"whether that release still has the defect ({self.upstream}), and adapt or remove the "
            "patch in patches.py. Otherwise reinstall Gradient Workbench.",
        )
