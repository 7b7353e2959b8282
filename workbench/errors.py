"""The exceptions of this package, and helpers for the text of messages.

Each message says what was given or attempted, what is wrong, and what to do. This is the
complete hierarchy; every class is exported by `workbench`:

- `WorkbenchError`
    - `UsageError`: invalid arguments (wrong ranks, an unknown option)
    - `ClusterError`
        - `NoCluster`: no cluster was started
        - `ClusterStopped`: the cluster was stopped, or its processes have ended
        - `StartFailed`: the ranks did not start (`.vm`, `.cause`, `.fix`)
            - `HorovodMissing`: no Horovod fits the installed PyTorch; also a `HorovodError`
    - `CellError`: a cell did not complete (`.output`, `.evidence`)
        - `RanksFailed`: the cell raised on some ranks (`.errors`)
        - `CellTimeout`: the cell exceeded its `--timeout` (`.unfinished`)
        - `CellInterrupted`: the user stopped the cell
            - `StudyInterrupted`: the user stopped a scaling study (`.study`)
    - `HorovodError`
        - `HorovodMissing`: see above
        - `BuildFailed`: Horovod did not build (`.cause`, `.fix`)
    - `WireError`: a rank's message of another version, or a truncated message
    - `RunError`: a recorded run that does not exist or cannot be read
    - `SnapshotError`: a snapshot file that cannot be read
    - `VmsUnavailable`: test VMs cannot be created on this machine

`RankError` is not an exception: it describes, as data, the exception that a rank raised.

The following exceptions are raised within a rank. They derive from built-in classes and are not
part of this hierarchy:

- `workbench.rank.prompts.InputRefused`: a `RuntimeError`
- `workbench.rank.training_errors.SpawnError`: a `TypeError`
- `workbench.rank.backends.backend.RingNotFormed`: a `RuntimeError`
- `workbench.rank.backends.process_sets.ProcessSetLost`: a `RuntimeError` and an `AttributeError`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The escape sequences of colours in a traceback."""

EVIDENCE = "Evidence: "
"""The start of the line in which an error names its evidence bundle."""


def printable(text: str, keep: str = "") -> str:
    r"""Escape non-printable characters, as `repr` does.

    Use this function for text from other people's files and from remote VMs, and for messages that
    quote them. Control characters (C0, DEL, C1), bidirectional controls and lone surrogates
    are escaped.

    Parameters
    ----------
    text
        Any text.
    keep
        Characters that are not escaped, such as line ends.

    Examples
    --------
    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    >>> print(printable("two\nlines", keep="\n"))
    two
    lines
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str, max_characters: int) -> str:
    """Return the text, with its middle left out if it is longer than `max_characters`.

    The end is kept, because a message that quotes an argument ends with the explanation. A note
    in the middle gives the number of characters that are left out.

    Examples
    --------
    >>> shortened("x" * 100, 10)
    'xxxxx... 90 characters ...xxxxx'
    """
    left_out = len(text) - max_characters
    if left_out <= 0:
        return text
    half = max_characters // 2
    return f"{text[:half]}... {left_out:,} characters ...{text[-half:]}"


class WorkbenchError(Exception):
    """Base class of the exceptions of this package.

    The message may quote a file or another VM, so control characters except line ends are
    escaped.
    """

    _escapes: ClassVar[bool] = True
    _unescaped: ClassVar[str] = "\n\t"
    """Characters that are not escaped."""
    _max_characters: ClassVar[int | None] = None
    """Maximum length of a message; the middle of a longer message is left out."""

    def __init__(self, message: object = "") -> None:
        if not self._escapes:
            # A lone surrogate can be neither shown in a notebook nor printed.
            super().__init__(str(message).encode(errors="backslashreplace").decode())
            return
        text = printable(str(message), keep=self._unescaped)
        super().__init__(
            text if self._max_characters is None else shortened(text, self._max_characters)
        )

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows: the message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(WorkbenchError, ValueError):
    """Invalid arguments.

    Examples
    --------
    >>> try:
    ...     raise UsageError("ranks '9': there is no rank 9. This cluster has 4.")
    ... except ValueError as error:
    ...     print(error)
    ranks '9': there is no rank 9. This cluster has 4.
    """

    _max_characters = 1000


class ClusterError(WorkbenchError):
    """A cluster cannot do what was requested."""


class NoCluster(ClusterError):
    """No cluster was started in this kernel."""

    _max_characters = 1000


class ClusterStopped(ClusterError):
    """The cluster was stopped, or its processes have ended."""


class StartFailed(ClusterError):
    """The ranks did not start; processes that had started were terminated.

    Attributes
    ----------
    vm : str
        The VM on which the start failed; may be empty.
    cause : str
        Why it failed.
    fix : str
        What the user can do; may be empty.

    Examples
    --------
    >>> str(StartFailed("connection refused", vm="node1", fix="Start sshd there."))
    'node1: connection refused: Start sshd there.'
    """

    def __init__(self, cause: str, *, vm: str = "", fix: str = "") -> None:
        super().__init__(_joined(vm, cause, fix))
        self.vm = vm
        self.cause = cause
        self.fix = fix

    @classmethod
    def together(cls, failures: list[StartFailed]) -> StartFailed:
        """Return one exception for the failures of several VMs."""
        return failures[0] if len(failures) == 1 else cls("\n".join(map(str, failures)))


class CellError(WorkbenchError):
    """A distributed cell failed.

    Attributes
    ----------
    output : str
        The merged output of the cell's ranks.
    evidence : Path or None
        The evidence bundle, a zip file next to the run; None if it was not written.
    """

    output: str = ""
    evidence: Path | None = None

    def add_evidence(self, line: str) -> None:
        """Append a line about the evidence bundle to the message, unless the line is empty."""
        if not line:
            return
        self.args = (f"{self.args[0]}\n{line}",)
        path = Path(line.removeprefix(EVIDENCE))
        self.evidence = path if line.startswith(EVIDENCE) and path.is_absolute() else None

    _escapes = False
    """False, so that the traceback of the user's code keeps its colours."""


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
        The error of each rank, in rank order. Ranks that did not fail themselves, but were
        released from a collective, are included only if no rank failed otherwise.
    """

    def __init__(self, message: str, errors: dict[int, RankError]) -> None:
        super().__init__(message)
        self.errors = errors

    def __str__(self) -> str:
        """Return the message without colours, for a log or a script's standard error."""
        return COLOURS.sub("", super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return each distinct traceback once, under the ranks that raised it."""
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
    """Horovod cannot be used, or could not be built."""


class HorovodMissing(HorovodError, StartFailed):
    """The ranks did not start: no Horovod fits the installed PyTorch."""


class BuildFailed(HorovodError):
    """Horovod did not build.

    Attributes
    ----------
    cause : str
        Why the build failed, in one sentence.
    fix : str
        What the user can do, in one sentence.
    """

    def __init__(self, message: str, *, cause: str, fix: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.fix = fix


class WireError(WorkbenchError):
    """A message from a rank cannot be read: it is truncated or has another version."""


class RunError(WorkbenchError):
    """A recorded run does not exist or cannot be read."""

    _unescaped = ""
    _max_characters = 1000


class SnapshotError(WorkbenchError):
    """A snapshot or topology file cannot be read."""

    _unescaped = ""
    _max_characters = 1000


class VmsUnavailable(WorkbenchError):
    """Test VMs cannot be created on this machine; those already created were removed."""


def reason(error: BaseException) -> str:
    """Return the message of an exception, or its class name if it has no message.

    The reason of a `KeyboardInterrupt` without a message is ``"interrupted"``.

    Examples
    --------
    >>> reason(OSError("no space left"))
    'no space left'
    >>> reason(TimeoutError())
    'TimeoutError'
    """
    message = str(error).strip()
    if message:
        return message
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _joined(vm: str, cause: str, fix: str) -> str:
    return ": ".join(filter(None, (vm, cause, fix)))
