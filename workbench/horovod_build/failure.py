"""Create the errors of a failed build, all in the same form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def failed(
    cause: str, cure: str, *, log: Path | None = None, lines: Sequence[str] = ()
) -> BuildFailed:
    """Create a `BuildFailed`.

    Parameters
    ----------
    cause, cure
        What went wrong, and what to do: a sentence each.
    log
        The complete log, if there is one.
    lines
        The lines of the log that show the cause.
    """
    parts = [f"Horovod was not built: {cause}", f"What to do: {cure}"]
    if lines:
        parts += ["From the log:", *(f"    {line}" for line in lines)]
    if log is not None:
        parts.append(f"Complete log: {log}")
    return BuildFailed("\n".join(parts), cause=cause, cure=cure)


def install_hint(debian: str, fedora: str) -> str:
    """Return how to install a system package with apt-get and with dnf."""
    return (
        f"Install it: `apt-get install {debian}` on Debian and Ubuntu, "
        f"`dnf install {fedora}` on Fedora and RHEL (as root)."
    )
