"""The exceptions of this package, and helpers for the text of messages.

Each message says what was given or attempted, what is wrong, and what to do.

- `WorkbenchError`
    - `UsageError`: invalid arguments (wrong ranks, an unknown option)
    - `ClusterError`
        - `NoCluster`: no cluster was started
        - `ClusterStopped`: the cluster was stopped, or its processes have ended
        - `StartFailed`: the ranks did not start (`.vm`, `.cause`, `.cure`)
    - `CellError`
        - `RanksFailed`: the cell raised on some ranks (`.errors`)
        - `CellTimeout`: the cell exceeded its `--timeout` (`.unfinished`)
        - `CellInterrupted`: the user stopped the cell
            - `StudyInterrupted`: one of a scaling study (`.study`)
    - `HorovodError`
        - `HorovodMissing`: a `StartFailed`, as no Horovod fits this PyTorch
        - `BuildFailed`: Horovod did not build (`.cause`, `.cure`)
    - `WireError`: a message of another version, or one that is truncated
    - `RunError`: a recorded run that does not exist or cannot be read
    - `SnapshotError`: a snapshot file that cannot be read
    - `VmsUnavailable`: test VMs cannot be created on this machine
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The escape sequences of colours in a traceback."""


EVIDENCE = "Evidence: "
"""Begins the line of an error that names its evidence bundle."""


def printable(text: str, keep: str = "") -> str:
    """Escape non-printable characters, as `repr` does.

    Use it for text from other people's files and from remote VMs, and for messages that
    quote them. Control characters (C0, DEL, C1), bidirectional controls and lone surrogates
    are escaped.

    Parameters
    ----------
    text
        Any text.
    keep
        Characters that are not escaped, such as line ends.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )


def shortened(text: str, most: int) -> str:
    """Return a text of about `most` characters or less, with its middle left out if necessary.

    The end is kept: a message that quotes an argument ends with what is wrong with it.
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[:half]}... {left_out:,} characters ...{text[-half:]}"


class WorkbenchError(Exception):
    """Base class of the exceptions of this package.

    The message may quote a file or another VM, so control characters except line ends are
    escaped.
    """

    _escapes: ClassVar[bool] = True
    _kept: ClassVar[str] = "\n\t"
    """Characters that are not escaped."""
    _longest: ClassVar[int | None] = None
    """Longest message; the middle of a longer one, which quotes an argument, is left out."""

    def __init__(self, message: object = "") -> None:
        if not self._escapes:
            # a lone surrogate can be neither shown in a notebook nor printed
            super().__init__(str(message).encode(errors="backslashreplace").decode())
            return
        text = printable(str(message), keep=self._kept)
        super().__init__(text if self._longest is None else shortened(text, self._longest))

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows: the message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(WorkbenchError, ValueError):
    """Invalid arguments."""

    _longest = 1000


class ClusterError(WorkbenchError):
    """A cluster cannot do what was requested."""


class NoCluster(ClusterError):
    """No cluster was started in this kernel."""

    _longest = 1000


class ClusterStopped(ClusterError):
    """The cluster was stopped, or its processes have ended."""


class StartFailed(ClusterError):
    """The ranks did not start; processes that had started were terminated.

    Attributes
    ----------
    vm, cause, cure : str
        Where it failed, why, and what to do; the first and the last may be empty.
    """

    def __init__(self, cause: str, *, vm: str = "", cure: str = "") -> None:
        super().__init__(_joined(vm, cause, cure))
        self.vm = vm
        self.cause = cause
        self.cure = cure

    @classmethod
    def together(cls, failed: list[StartFailed]) -> StartFailed:
        """Combine the failures of several VMs into one exception."""
        return failed[0] if len(failed) == 1 else cls("\n".join(map(str, failed)))


class CellError(WorkbenchError):
    """A distributed cell failed.

    Attributes
    ----------
    output : str
        The merged output of its ranks.
    evidence : Path or None
        The evidence bundle, a zip file next to the run; None if none was written.
    """

    output: str = ""
    evidence: Path | None = None

    def add_evidence(self, line: str) -> None:
        """Add a line about the evidence bundle at the end of the message; nothing if empty."""
        if not line:
            return
        self.args = (f"{self.args[0]}\n{line}",)
        path = Path(line.removeprefix(EVIDENCE))
        self.evidence = path if line.startswith(EVIDENCE) and path.is_absolute() else None

    _escapes = False  # the traceback of the user's code keeps its colours


@dataclass(frozen=True)
class RankError:
    """One rank's exception, as data.

    Attributes
    ----------
    name
        The exception's class name, such as ``"ValueError"``.
    message
        ``str(exception)``.
    traceback
        The traceback as shown in a notebook, including ANSI colours.
    """

    name: str
    message: str
    traceback: str


class RanksFailed(CellError):
    """The cell raised on some ranks; the others were released.

    Attributes
    ----------
    errors : dict[int, RankError]
        The error of each rank, in rank order. Ranks that were only released from a
        collective are left out, unless there are no others.
    """

    def __init__(self, message: str, errors: dict[int, RankError]) -> None:
        super().__init__(message)
        self.errors = errors

    def __str__(self) -> str:
        """Return the message without colours, for a log or a script's standard error."""
        return COLOURS.sub("", super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return each distinct traceback once, under the ranks it happened on."""
        return super().__str__().splitlines()


class CellTimeout(CellError):
    """The cell exceeded its time limit; its ranks were interrupted.

    Attributes
    ----------
    unfinished : tuple[int, ...]
        The ranks that had not finished, in order.
    """

    def __init__(self, message: str, unfinished: tuple[int, ...]) -> None:
        super().__init__(message)
        self.unfinished = unfinished


class CellInterrupted(CellError):
    """The user stopped the cell; its ranks were released."""


class StudyInterrupted(CellInterrupted):
    """The user stopped a scaling study after some sizes.

    Attributes
    ----------
    study : ScalingStudy
        The sizes that were measured.
    """

    def __init__(self, message: str, study: Any) -> None:
        super().__init__(message)
        self.study = study


class HorovodError(WorkbenchError):
    """A problem with the installed Horovod, or with building it."""


class HorovodMissing(HorovodError, StartFailed):
    """The ranks did not start: no Horovod fits the installed PyTorch."""


class BuildFailed(HorovodError):
    """Horovod did not build.

    Attributes
    ----------
    cause, cure : str
        One sentence each.
    """

    def __init__(self, message: str, *, cause: str, cure: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.cure = cure


class WireError(WorkbenchError):
    """A message from a rank that cannot be read: of another version, or truncated."""


class RunError(WorkbenchError):
    """A recorded run that does not exist or cannot be read."""

    _kept = ""
    _longest = 1000


class SnapshotError(WorkbenchError):
    """A snapshot or topology file that cannot be read."""

    _kept = ""
    _longest = 1000


class VmsUnavailable(WorkbenchError):
    """Test VMs cannot be created on this machine; those already created were removed."""


def reason(error: BaseException) -> str:
    """Return the message of an exception, or its class name if it has no message."""
    message = str(error).strip()
    if message:
        return message
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _joined(vm: str, cause: str, cure: str) -> str:
    return ": ".join(filter(None, (vm, cause, cure)))
