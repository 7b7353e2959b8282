"""Add the parts about ranks to a bundle: states, stacks, errors, and ends of processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from workbench.cluster.evidence.bundle import Bundle
from workbench.cluster.evidence.states import SeenState
from workbench.cluster.processes import ClusterProcesses
from workbench.errors import COLOURS, RankError
from workbench.ranks import RankInfo, phrase
from workbench.resources.unknown import Unknown
from workbench.wire.detached import exit_text

_NO_ANSWER = "it did not answer: its process is stopped, has ended, or holds Python's lock"
_OUTPUT_CHARACTERS = 1 << 16


def add_ranks(
    bundle: Bundle,
    processes: ClusterProcesses,
    states: Mapping[int, SeenState],
    earlier: Mapping[int, SeenState],
    lost: Mapping[int, str],
) -> None:
    """Add the state and the stack of each rank, and how its process has ended.

    Parameters
    ----------
    bundle
        The bundle to which the parts are added.
    processes
        The processes of the cluster.
    states
        The states that ranks have reported for this bundle, by rank.
    earlier
        The newest state that each rank reported before that request.
    lost
        The reason why a rank can no longer answer, by rank.
    """
    infos = {info.rank: info for info in processes.engines.ranks}
    ends = _exits(processes, infos)
    rows = []
    for rank, info in infos.items():
        earlier_state = earlier.get(rank)
        rows.append(
            asdict(info)
            | {
                "lost": lost.get(rank),
                "end": ends.get(rank),
                "state_at_request": states[rank].to_plain()
                if rank in states
                else {"unknown": lost.get(rank) or _NO_ANSWER},
                "newest_earlier_state": earlier_state.to_plain()
                if earlier_state is not None and earlier_state != states.get(rank)
                else {"unknown": "none was requested before"},
            }
        )
    bundle.add_json("ranks.json", rows, "each rank: process, state, end")
    stacks = [_stack(info, states, earlier, lost) for info in infos.values()]
    bundle.add("stacks.txt", "\n".join(stacks), "the Python stack of each rank's main thread")
    if unanswered := sorted(set(infos) - set(states)):
        bundle.mark_missing(
            "stacks.txt: " + phrase(unanswered), "; ".join(_silence_reasons(unanswered, lost))
        )
    logs = [f"{_heading(infos[rank])}, {end['how']}:\n{end['log']}\n" for rank, end in ends.items()]
    bundle.add(
        "rank_logs.txt",
        "\n".join(logs) or Unknown("no process of a rank has ended; its log is read at its end"),
        "the last lines that ended ranks wrote outside of cells",
    )


def add_errors(bundle: Bundle, errors: Mapping[int, RankError], message: str) -> None:
    """Add the error message that the user sees, and the traceback of each rank."""
    texts = [COLOURS.sub("", message).rstrip() + "\n"]
    for rank, error in sorted(errors.items()):
        traceback = COLOURS.sub("", error.traceback).rstrip()
        texts.append(f"== rank {rank}: {error.name}: {error.message}\n{traceback}\n")
    bundle.add("error.txt", "\n".join(texts), "the error of the cell, and of each rank")


def add_output(bundle: Bundle, output: str) -> None:
    """Add the end of a cell's output."""
    if output:
        bundle.add_end("output.txt", output, "the end of the cell's output", _OUTPUT_CHARACTERS)
    else:
        bundle.mark_missing("output.txt", "the cell has written nothing so far")


def collectives_of(state: SeenState | None, ended: Mapping[int, int] | None) -> dict[str, Any]:
    """Return a rank's collective at the time of the request, and its counts in the cell.

    Parameters
    ----------
    state
        The state that the rank has reported; None if it has not answered.
    ended
        How many collectives the rank has started in the cell, by Horovod's process set (0 has all
        ranks); None if the rank has not ended the cell.

    Examples
    --------
    >>> collectives_of(None, {0: 12})
    {'at_request': {'unknown': 'the rank did not answer'}, 'started_at_its_end': {'0': 12}}
    """
    counts: dict[str, Any] = {"at_request": {"unknown": "the rank did not answer"}}
    if state is not None:
        rank_state = state.state
        counts["at_request"] = {
            "current": rank_state.collective,
            "number": rank_state.collective_number,
            "blocked_s": rank_state.blocked_s,
            "not_completed": list(rank_state.outstanding),
            "started": {str(rank_state.process_set): rank_state.calls},
        }
    counts["started_at_its_end"] = (
        {"unknown": "the rank has not ended the cell"}
        if ended is None
        else {str(process_set): count for process_set, count in ended.items()}
    )
    return counts


def _exits(processes: ClusterProcesses, infos: Mapping[int, RankInfo]) -> dict[int, dict[str, Any]]:
    """Return how each ended process of a rank has ended, by rank."""
    exits = {}
    for member in processes.engines.members:
        agents = processes.agents.all
        end = agents[member.vm].ends.get(member.info.pid) if member.vm < len(agents) else None
        if end is not None and member.info.rank in infos:
            exits[member.info.rank] = {
                "code": end.code,
                "how": exit_text(end.code),
                "memory": end.oom or "nothing points to a shortage of memory",
                "log": end.log or "(it wrote nothing)",
            }
    return exits


def _heading(info: RankInfo) -> str:
    return f"== rank {info.rank}, process {info.pid} on {info.vm}"


def _stack(
    info: RankInfo,
    states: Mapping[int, SeenState],
    earlier: Mapping[int, SeenState],
    lost: Mapping[int, str],
) -> str:
    """Return the stack of a rank at the request, and its earlier stack if that differs."""
    seen = states.get(info.rank)
    before = earlier.get(info.rank)
    if seen is not None:
        text = f"{_heading(info)}\n{_location_text(seen)}{seen.state.stack}"
    else:
        text = f"{_heading(info)}\nunknown: {lost.get(info.rank) or _NO_ANSWER}\n"
    if before is not None and (seen is None or _location(seen) != _location(before)):
        text += f"Its newest earlier state, of {before.at_s:.3f}:\n"
        text += _location_text(before) + before.state.stack
    return text


def _location(seen: SeenState) -> tuple[int | None, str | None]:
    return seen.state.cell, seen.state.collective


def _location_text(seen: SeenState) -> str:
    state = seen.state
    if state.cell is None:
        return "no cell runs\n"
    if state.collective is None:
        return f"in cell {state.cell}, in no collective\n"
    return f"in cell {state.cell}, for {state.blocked_s:.3f} s in {state.collective!r}\n"


def _silence_reasons(ranks: list[int], lost: Mapping[int, str]) -> list[str]:
    return list(dict.fromkeys(lost.get(rank) or _NO_ANSWER for rank in ranks))
