"""Results of cells, and errors of cells and of changes of the ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.cluster.members import STILL_RUNS
from workbench.errors import COLOURS, RankError, RanksFailed, StartFailed, reason
from workbench.output.differing_parts import RankIdentity, labelled, shared_messages
from workbench.ranks import RankInfo, grouped, label, phrase, ranks_text

if TYPE_CHECKING:
    from workbench.cluster.engines import Engines

_REPR_CHARACTERS = 400
"""The repr of a result shortens texts that are longer."""


@dataclass(frozen=True)
class ValueNotSent:
    """Replaces a value that was not sent by its rank; `reason` says why.

    Examples
    --------
    >>> ValueNotSent("it is a generator")
    <kept on its rank: it is a generator>
    """

    reason: str

    def __repr__(self) -> str:
        return f"<kept on its rank: {self.reason}>"


@dataclass
class RunResult:
    """The output and the values of a cell.

    Attributes
    ----------
    output
        The text of all ranks, with equal lines merged. Its order depends on the printed text of
        each rank, not on the time of its arrival. If it has more than 200 million characters, a
        line replaces the middle.
    values
        The last expression's value by rank; None if there was none, a
        `ValueNotSent` if it could not be sent.

    Examples
    --------
    >>> import pickle
    >>> result = RunResult("done", {0: pickle.dumps(3), 1: ValueNotSent("too large")})
    >>> result.values
    {0: 3, 1: <kept on its rank: too large>}
    >>> result
    RunResult(values={0: 3, 1: <kept on its rank: too large>}, output='done')
    """

    output: str
    _values: dict[int, bytes | ValueNotSent | None] = field(repr=False)

    def __repr__(self) -> str:
        values = ", ".join(f"{rank}: {_short(value)}" for rank, value in self.values.items())
        return f"RunResult(values={{{values}}}, output={_short(self.output)})"

    @property
    def values(self) -> dict[int, Any]:
        """The last expression's value by rank."""
        return {rank: _unpickle(value) for rank, value in sorted(self._values.items())}


def _short(value: object) -> str:
    """Return a value's repr, without its middle if it is long."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        return f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"
    left_out = len(text) - _REPR_CHARACTERS
    if left_out <= 0:
        return text
    half = _REPR_CHARACTERS // 2
    return f"{text[:half]}... {left_out:,} characters ...{text[-half:]}"


def _unpickle(value: bytes | ValueNotSent | None) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        # the bytes are from a rank of this cluster, over an authenticated channel
        return pickle.loads(value)  # noqa: S301
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
        return ValueNotSent(f"this kernel cannot read it: {type(error).__name__}: {error}")


STOPPED = "the cluster was stopped"
UNFINISHED_CHANGE = (
    "The earlier kernel ended before a change of the ranks was done. Variables of all ranks "
    "that still run are kept"
)


def failure(
    errors: dict[int, RankError],
    *,
    released: bool = False,
    stall: str = "",
    is_peer_error: Callable[[RankError], bool] = lambda _: False,
    identities: Mapping[int, RankIdentity] | None = None,
) -> RanksFailed:
    """Return the error of a cell that has failed on some ranks.

    Errors are shown once if they differ only in the `identities` of the ranks. `stall` says why
    waiting ranks were freed although no rank had failed. `is_peer_error` returns whether the error
    of a rank only means that another rank has failed.

    Examples
    --------
    >>> error = RankError("ValueError", "no data", "")
    >>> print(failure({0: error, 1: error}))
    [ranks 0-1] ValueError: no data
    """
    causes = {rank: error for rank, error in errors.items() if not is_peer_error(error)}
    shown = causes or errors
    parts = []
    for ranks, error, differing in _grouped(shown, identities or {}):
        parts.append(f"{label(ranks)} {_text(error)}")
        if differing:
            parts.append(labelled(ranks, differing))
    if stall and not causes:  # the backend's error only says that the ring has ended
        parts = [stall]
    freed = sorted(set(errors) - set(causes))
    if causes and freed:
        parts.append(f"{label(freed)} freed from a collective; variables are kept")
    if any(error.message == STOPPED for error in errors.values() if error.name == "RankLost"):
        parts.append("Start a cluster with %cluster start")
    elif any(error.name == "RankLost" for error in errors.values()):
        parts.append("Replace what is lost before the next cell: %cluster shows how")
    elif released:
        parts.append(
            "The ring is rebuilt. Ranks may be a step apart: broadcast the parameters and the "
            "optimizer's state before you go on"
        )
    return RanksFailed("\n".join(parts), dict(sorted(shown.items())))


def failure_outside_cell(rank: int, error: BaseException) -> RankError:
    """Return the error of a rank that failed while it ran a cell, outside the cell's own code."""
    kind = getattr(error, "ename", type(error).__name__)
    detail = str(getattr(error, "evalue", error)).strip()
    return RankError(
        "RankFailed",
        f"{kind}{f': {detail}' if detail else ''}, outside the cell's own code. If it happens "
        f"again, replace the rank with %cluster restart --ranks {rank}.",
        "",
    )


def _text(error: RankError) -> str:
    """Return the error's message, and its traceback if it has more than the message."""
    message = f"{error.name}: {error.message}"
    if COLOURS.sub("", error.traceback).strip() == message.strip():
        return message.rstrip()
    return f"{message}\n{error.traceback}".rstrip()


def _grouped(
    errors: dict[int, RankError], identities: Mapping[int, RankIdentity]
) -> list[tuple[tuple[int, ...], RankError, str]]:
    """Return each error with its ranks and their differing parts, by the first rank."""
    compared = {
        rank: (error.name, error.message, _details(error)) for rank, error in errors.items()
    }
    groups = []
    for ranks, (_, message, _), differing in shared_messages(compared, identities):
        first = errors[ranks[0]]
        shown = first
        if message != first.message:
            traceback = first.traceback.replace(first.message, message)
            shown = replace(first, message=message, traceback=traceback)
        groups.append((ranks, shown, differing))
    return groups


def _details(error: RankError) -> str:
    """Return the part of a traceback after the message: notes, and the members of a group."""
    return COLOURS.sub("", error.traceback).partition(f"{error.name}: {error.message}")[2]


def cluster_failure_reason(engines: Engines, lost: dict[int, str], message: str) -> str:
    """Return why a cluster cannot run a cell, and what to do.

    `lost` says why ranks can no longer answer, by rank. `message` is the message of the cluster's
    state, which is used if no rank is lost.
    """
    ended = engines.members.controller_ended
    wanted = engines.wanted
    if wanted is not None and not ended:
        return (
            f"{message.rstrip('.')}. Rebuild the ring with %cluster resize -n "
            f"{wanted}, which also starts what is missing, or start a new cluster after "
            "%cluster stop."
        )
    causes = "; ".join(_loss_text(ranks, reason) for reason, ranks in grouped(lost)) or ended
    return f"{(causes or message).rstrip('.')}. {_fix(engines, set(lost))}"


def change_failure(error: Exception, wanted: int | None) -> str:
    """Return why a change failed; without the fix if `cluster_failure_reason` adds one."""
    text = reason(error)
    if isinstance(error, StartFailed) and wanted is not None:
        return text.removesuffix(f": {error.fix}")
    return text


def interrupted_change(
    message: str, before: Iterable[RankInfo], after: Iterable[RankInfo], lost: Iterable[int]
) -> str:
    """Return which variables are kept after a change of the ranks was interrupted.

    `message` describes the change, and `lost` are ranks that were lost before it.

    Examples
    --------
    >>> interrupted_change("replacing rank 1", [], [], [1])
    'replacing rank 1: interrupted before it was done. Variables of rank 1 are lost, those of all
    others are kept.'
    """
    remaining = {(info.vm, info.pid) for info in after}
    removed = {info.rank for info in before if (info.vm, info.pid) not in remaining} | set(lost)
    kept = (
        f"Variables of {phrase(removed)} are lost, those of all others are kept"
        if removed
        else "All variables are kept"
    )
    return f"{message}: interrupted before it was done. {kept}."


def _fix(engines: Engines, lost: set[int]) -> str:
    """Return what a user can do about a cluster that cannot run a cell."""
    if engines.members.controller_ended:
        return "Stop it with %cluster stop, and start another with %cluster start."
    if not lost:
        return (
            "Rebuild the ring with %cluster restart, which keeps all variables, replace ranks "
            "with %cluster restart --ranks N, or stop it with %cluster stop."
        )
    if lost <= engines.members.given_up:
        instead = "it instead"
        if engines.backend.controller == "MPI":
            instead = "all ranks instead, and their variables are lost"
        return (
            "The cluster is ready again when that cell ends, with all variables; "
            f"%cluster restart replaces {instead}."
        )
    if engines.backend.controller == "MPI":
        return (
            "Replace all ranks with %cluster restart: MPI connects them, and accepts no new "
            "process. Their variables are lost."
        )
    if len(lost) == len(engines.ranks):
        return "Replace all ranks with %cluster restart; their variables are lost."
    return (
        f"Replace what is lost with %cluster restart --ranks {ranks_text(sorted(lost))}, or go on "
        "without it with %cluster resize."
    )


def _loss_text(ranks: list[int], reason: str) -> str:
    if reason == STILL_RUNS:
        cell = STILL_RUNS.removeprefix("it still runs ")
        return phrase(ranks, f"still runs {cell}", f"still run {cell}")
    return f"{phrase(ranks)}: {reason}"
