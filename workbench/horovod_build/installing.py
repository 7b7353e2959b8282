"""Install a wheel into the running environment, without changing PyTorch."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from workbench.horovod_build.command import run_logged
from workbench.horovod_build.diagnosis import failure_from_log
from workbench.horovod_build.recipe import RUNTIME_NEEDS

if TYPE_CHECKING:
    from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")


def install_needs(log: Path) -> None:
    """Install the missing requirements of Horovod, except PyTorch."""
    missing = [need for need in RUNTIME_NEEDS if not _installed(re.split(r"[<>=!~]", need)[0])]
    if missing:
        _run([*PIP, "install", *missing], log)


def install_wheel(wheel: Path, log: Path) -> None:
    """Install the wheel, replacing any installed Horovod.

    Its dependencies are not installed: pip could otherwise replace the PyTorch that the
    wheel was built against.
    """
    _run([*PIP, "install", "--no-deps", "--force-reinstall", str(wheel)], log)


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _run(command: list[str], log: Path) -> None:
    if run_logged(command, log) != 0:
        raise failure_from_log(log)
