"""NCCL's settings, from the environment and its configuration files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.safefiles import read_file

_PREFIX = "NCCL_"
_MAX_BYTES = 64 << 10
_DEFAULT_TOPOLOGY = "var/run/nvidia-topologyd/virtualTopology.xml"


def is_on(value: str | None) -> bool:
    """Return whether NCCL treats the value as true: an integer other than 0.

    Examples
    --------
    >>> is_on("1"), is_on("0"), is_on("true"), is_on(None)
    (True, False, False, False)
    """
    try:
        return value is not None and int(value, 0) != 0
    except ValueError:
        return False


@dataclass(frozen=True)
class NcclSettings:
    """Settings by precedence: the environment, the user's file, the system's file.

    Attributes
    ----------
    environ
        The environment of the process in which NCCL will run.
    root
        Root of the file system. It contains ``etc/nccl.conf``.

    Examples
    --------
    >>> settings = NcclSettings({"NCCL_DEBUG": "INFO", "PATH": "/bin"}, Path("/nonexistent"))
    >>> settings.all()
    {'NCCL_DEBUG': 'INFO'}
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")

    def get(self, name: str) -> str | None:
        """Return one setting; None if it is not set."""
        return self._values().get(name)

    def all(self) -> dict[str, str]:
        """Return all settings, each with the value that NCCL will read."""
        values = self._values()
        return {name: values[name] for name in sorted(values) if name.startswith(_PREFIX)}

    def _values(self) -> dict[str, str]:
        values = dict(self.environ)
        for file in self._files():
            for line in _lines(file):
                name, equals, value = line.partition("=")
                if equals and not line.startswith("#"):
                    values.setdefault(name.strip(), value.strip())
        return values

    def topology_file(self) -> tuple[Path, str | None]:
        """Return the topology file that NCCL tries to read, and the setting that names it."""
        named = self.get("NCCL_TOPO_FILE")
        if named:
            return Path(named), "NCCL_TOPO_FILE"
        return self.root / _DEFAULT_TOPOLOGY, None

    def _files(self) -> list[Path]:
        user_file = self.environ.get("NCCL_CONF_FILE")
        home = self.environ.get("HOME")
        user_files = [Path(user_file)] if user_file else [Path(home) / ".nccl.conf"] if home else []
        return [*user_files, self.root / "etc/nccl.conf"]


def _lines(file: Path) -> list[str]:
    """Return the lines of a settings file; empty if it cannot be read, as in NCCL."""
    try:
        return read_file(file, _MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
