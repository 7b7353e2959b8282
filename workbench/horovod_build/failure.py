"""One shape for every way in which a build can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def failed(
    cause: str, cure: str, *, log: Path | None = None, lines: Sequence[str] = ()
) -> BuildFailed:
    """Make the error from its parts.

    Parameters
    ----------
    cause, cure
        A sentence each: what was found, and what to do about it.
    log
        The whole log, where there is one.
    lines
        The log's few lines that show the cause.
    """
    parts = [f"Horovod was not built: {cause}", f"What to do: {cure}"]
    if lines:
        parts += ["From the log:", *(f"    {line}" for line in lines)]
    if log is not None:
        parts.append(f"The whole log: {log}")
    return BuildFailed("\n".join(parts), cause=cause, cure=cure)


def install_hint(debian: str, fedora: str) -> str:
    """Return how to install a system package, in the words of both families."""
    return (
        f"Install it: `apt-get install {debian}` on Debian and Ubuntu, "
        f"`dnf install {fedora}` on Fedora and RHEL (as root)."
    )
