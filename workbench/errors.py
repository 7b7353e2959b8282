"""The tree of errors.

Each message says what was given or attempted, what is wrong, and what to do.

- `WorkbenchError`
    - `UsageError`: the call cannot mean anything (wrong ranks, an unknown option)
    - `ClusterError`
        - `NoCluster`: no cluster was started
        - `ClusterStopped`: the cluster was stopped, or is gone
        - `StartFailed`: the ranks did not come up (`.vm`, `.cause`, `.cure`)
    - `CellError`
        - `RanksFailed`: the cell raised on some ranks (`.errors`)
        - `CellTimeout`: the cell ran past its `--timeout` (`.unfinished`)
        - `CellInterrupted`: the user stopped the cell
    - `HorovodError`
        - `HorovodMissing`: no Horovod that fits this PyTorch (`.vm`, `.cause`, `.cure`)
        - `BuildFailed`: Horovod did not build (`.cause`, `.cure`)
    - `WireError`: a message of another version, or one that is cut short
    - `RunError`: a run that is not there, or that cannot be read
    - `SnapshotError`: a snapshot file that cannot be read
    - `VmsUnavailable`: test VMs cannot be made on this machine
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


def printable(text: str, keep: str = "") -> str:
    """Escape what a terminal would obey or could not show, as Python writes it in quotes.

    For text of other people's files and of remote VMs, and of messages that quote them.
    Control characters (C0, DEL, C1), bidirectional controls and lone surrogates are escaped.

    Parameters
    ----------
    text
        Anything.
    keep
        Characters that stay: a message of several lines keeps its line ends.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )


def shortened(text: str, most: int) -> str:
    """Return a text of at most about `most` characters: its middle is left out where it is longer.

    A message that quotes an argument ends in what is wrong with it.
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[:half]}... {left_out:,} characters ...{text[-half:]}"


class WorkbenchError(Exception):
    """Base of every error that this package raises on purpose.

    Its message may quote a file or another VM: it holds no control characters but line ends.
    """

    _escapes: ClassVar[bool] = True
    _kept: ClassVar[str] = "\n\t"
    """Characters that are not escaped."""
    _longest: ClassVar[int | None] = None
    """The middle of a longer message is left out: it quotes an argument."""

    def __init__(self, message: object = "") -> None:
        if not self._escapes:
            super().__init__(message)
            return
        text = printable(str(message), keep=self._kept)
        super().__init__(text if self._longest is None else shortened(text, self._longest))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: what happened, without our own frames."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(WorkbenchError, ValueError):
    """The call cannot mean anything as it stands."""

    _longest = 1000


class ClusterError(WorkbenchError):
    """A cluster cannot do what was asked."""


class NoCluster(ClusterError):
    """No cluster was started in this kernel."""

    _longest = 1000


class ClusterStopped(ClusterError):
    """The cluster was stopped, or its processes are gone."""


class StartFailed(ClusterError):
    """The ranks did not come up; what had started was taken down again.

    Attributes
    ----------
    vm, cause, cure : str
        Where, why, and what to do; the first and the last may be empty.
    """

    def __init__(self, cause: str, *, vm: str = "", cure: str = "") -> None:
        super().__init__(_told(vm, cause, cure))
        self.vm = vm
        self.cause = cause
        self.cure = cure

    @classmethod
    def together(cls, failed: list[StartFailed]) -> StartFailed:
        """Return the one failure of several VMs, or one that tells of all."""
        return failed[0] if len(failed) == 1 else cls("\n".join(map(str, failed)))


class CellError(WorkbenchError):
    """A distributed cell did not end well.

    Attributes
    ----------
    output : str
        The merged text of its ranks.
    """

    output: str = ""

    _escapes = False  # the traceback of a person's own code keeps its colours


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
        The traceback as a notebook shows it, ANSI colours included.
    """

    name: str
    message: str
    traceback: str


class RanksFailed(CellError):
    """The cell raised on some ranks; the others are free again.

    Attributes
    ----------
    errors : dict[int, RankError]
        Rank to its error, in rank order; ranks that were only freed from a
        collective are left out unless no rank failed by itself.
    """

    def __init__(self, message: str, errors: dict[int, RankError]) -> None:
        super().__init__(message)
        self.errors = errors

    def _render_traceback_(self) -> list[str]:
        """Return each distinct traceback once, under the ranks it happened on."""
        return str(self).splitlines()


class CellTimeout(CellError):
    """The cell ran past its time limit; its ranks were interrupted.

    Attributes
    ----------
    unfinished : tuple[int, ...]
        The ranks that had not finished, in order.
    """

    def __init__(self, message: str, unfinished: tuple[int, ...]) -> None:
        super().__init__(message)
        self.unfinished = unfinished


class CellInterrupted(CellError):
    """The user stopped the cell; its ranks are free again."""


class HorovodError(WorkbenchError):
    """Something about the installed Horovod, or about building it."""


class HorovodMissing(HorovodError):
    """No Horovod that fits the installed PyTorch.

    Attributes
    ----------
    vm, cause, cure : str
        Where, why, and what to do.
    """

    def __init__(self, cause: str, *, vm: str, cure: str) -> None:
        super().__init__(_told(vm, cause, cure))
        self.vm = vm
        self.cause = cause
        self.cure = cure


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
    """A message from a rank that cannot be read: another version, or cut short."""


class RunError(WorkbenchError):
    """A run of timings on disk that is not there, or that cannot be read."""

    _kept = ""
    _longest = 1000


class SnapshotError(WorkbenchError):
    """A snapshot or topology file that cannot be read."""

    _kept = ""
    _longest = 1000


class VmsUnavailable(WorkbenchError):
    """Test VMs cannot be made on this machine; nothing is left of those that were begun."""


def reason(error: BaseException) -> str:
    """Return what an exception says, or what it is where it says nothing."""
    said = str(error).strip()
    if said:
        return said
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _told(vm: str, cause: str, cure: str) -> str:
    return ": ".join(filter(None, (vm, cause, cure)))
