"""A patch of Horovod's source: one exact text replacement."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.horovod_build.failure import failed
from workbench.horovod_build.recipe import VERSION

if TYPE_CHECKING:
    from pathlib import Path

REPOSITORY = "https://github.com/horovod/horovod/blob/v0.28.1"


@dataclass(frozen=True)
class Patch:
    """One exact replacement in the unpacked source.

    Attributes
    ----------
    name
        Name in the wheel's record.
    defect
        What a user experiences without the patch.
    upstream
        URL of the defect in the upstream repository.
    file
        Path relative to the source folder.
    old, new
        The original text and its replacement.
    times
        How often `old` must occur in the file.
    """

    name: str
    defect: str
    upstream: str
    file: str
    old: str
    new: str
    times: int = 1

    def apply(self, source: Path) -> None:
        """Patch the file in the folder `source`.

        Raises
        ------
        BuildFailed
            If the file cannot be read, or the text does not occur as often as expected.
        """
        path = source / self.file
        try:
            content = path.read_bytes()
        except OSError:
            raise self._no_match(f"{self.file} cannot be read.") from None
        found = content.count(self.old.encode())
        if found != self.times:
            raise self._no_match(
                f"{self.file} contains the text to replace {found} times, not {self.times}."
            )
        path.write_bytes(content.replace(self.old.encode(), self.new.encode()))

    def digest(self) -> str:
        """Return a hash of the patch; it is part of the wheel's key."""
        exact = (self.file, self.old, self.new, str(self.times))
        return hashlib.sha256("\0".join(exact).encode()).hexdigest()[:16]

    def _no_match(self, what: str) -> Exception:
        return failed(
            f"the patch `{self.name}` does not match this source: {what}",
            f"It is written for Horovod {VERSION}. If recipe.py names another release, check "
            f"whether that release still has the defect ({self.upstream}), and adapt or remove the "
            "patch in patches.py. Otherwise reinstall Gradient Workbench.",
        )
