"""What a bundle has about the ranks: states, stacks, errors, and how processes have ended."""

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
    """Add the state, the stack and the end of each rank.

    Parameters
    ----------
    states
        The answers to a request for this bundle.
    earlier
        The newest states before it.
    lost
        Why ranks can no longer answer.
    """
    infos = {info.rank: info for info in processes.engines.ranks}
    ends = _ends(processes, infos)
    rows = []
    for rank, info in infos.items():
        before = earlier.get(rank)
        rows.append(
            asdict(info)
            | {
                "lost": lost.get(rank),
                "end": ends.get(rank),
                "state_at_request": states[rank].to_plain()
                if rank in states
                else {"unknown": lost.get(rank) or _NO_ANSWER},
                "newest_earlier_state": before.to_plain()
                if before is not None and before != states.get(rank)
                else {"unknown": "none was requested before"},
            }
        )
    bundle.add_json("ranks.json", rows, "each rank: process, state, end")
    stacks = [_stack(info, states, earlier, lost) for info in infos.values()]
    bundle.add("stacks.txt", "\n".join(stacks), "the Python stack of each rank's main thread")
    if silent := sorted(set(infos) - set(states)):
        bundle.miss("stacks.txt: " + phrase(silent), "; ".join(_why_silent(silent, lost)))
    logs = [f"{_head(infos[rank])}, {end['how']}:\n{end['log']}\n" for rank, end in ends.items()]
    bundle.add(
        "rank_logs.txt",
        "\n".join(logs) or Unknown("no process of a rank has ended; its log is read at its end"),
        "the last lines that ended ranks wrote outside of cells",
    )


def add_errors(bundle: Bundle, errors: Mapping[int, RankError], message: str) -> None:
    """Add the error that the user sees, and the traceback of each rank."""
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
        bundle.miss("output.txt", "the cell has written nothing so far")


def collectives_of(state: SeenState | None, ended: Mapping[int, int] | None) -> dict[str, Any]:
    """Return a rank's current collective at the request, and how many it started in the cell.

    Counts are by Horovod's process set; 0 is all ranks.
    """
    found: dict[str, Any] = {"at_request": {"unknown": "the rank did not answer"}}
    if state is not None:
        what = state.state
        found["at_request"] = {
            "current": what.collective,
            "number": what.collective_number,
            "blocked_s": what.blocked_s,
            "not_completed": list(what.outstanding),
            "started": {str(what.process_set): what.calls},
        }
    found["started_at_its_end"] = (
        {"unknown": "the rank has not ended the cell"}
        if ended is None
        else {str(process_set): count for process_set, count in ended.items()}
    )
    return found


def _ends(processes: ClusterProcesses, infos: Mapping[int, RankInfo]) -> dict[int, dict[str, Any]]:
    """Return how processes of ranks have ended, by rank."""
    found = {}
    for member in processes.engines.members:
        agents = processes.agents.all
        end = agents[member.vm].ends.get(member.info.pid) if member.vm < len(agents) else None
        if end is not None and member.info.rank in infos:
            found[member.info.rank] = {
                "code": end.code,
                "how": exit_text(end.code),
                "memory": end.oom or "nothing points to a shortage of memory",
                "log": end.log or "(it wrote nothing)",
            }
    return found


def _head(info: RankInfo) -> str:
    return f"== rank {info.rank}, process {info.pid} on {info.vm}"


def _stack(
    info: RankInfo,
    states: Mapping[int, SeenState],
    earlier: Mapping[int, SeenState],
    lost: Mapping[int, str],
) -> str:
    seen, before = states.get(info.rank), earlier.get(info.rank)
    if seen is not None:
        text = f"{_head(info)}\n{_where(seen)}{seen.state.stack}"
    else:
        text = f"{_head(info)}\nunknown: {lost.get(info.rank) or _NO_ANSWER}\n"
    if before is not None and (seen is None or _place(seen) != _place(before)):
        text += f"Its newest earlier state, of {before.at_s:.3f}:\n"
        text += _where(before) + before.state.stack
    return text


def _place(seen: SeenState) -> tuple[int | None, str | None]:
    return seen.state.cell, seen.state.collective


def _where(seen: SeenState) -> str:
    state = seen.state
    if state.cell is None:
        return "no cell runs\n"
    if state.collective is None:
        return f"in cell {state.cell}, in no collective\n"
    return f"in cell {state.cell}, for {state.blocked_s:.3f} s in {state.collective!r}\n"


def _why_silent(ranks: list[int], lost: Mapping[int, str]) -> list[str]:
    return list(dict.fromkeys(lost.get(rank) or _NO_ANSWER for rank in ranks))
