"""Requests of input that reach a kernel: who is asked, and what is answered without asking."""

import builtins
import time

import pytest

from workbench.cluster.prompts import NO_CELL, CellPrompts
from workbench.output.cell_output import CellOutput
from workbench.output.sink import TextSink
from workbench.rank.interrupts import Interrupts
from workbench.rank.prompts import RankPrompts
from workbench.wire.prompt_messages import InputReply, InputRequest


@pytest.fixture
def sent():
    return []


@pytest.fixture
def prompts(sent):
    """The prompts of a cell of two ranks."""
    return CellPrompts(lambda *one: sent.append(one), CellOutput((0, 1), TextSink()))


@pytest.mark.parametrize("error", [RuntimeError("the sink is broken"), OSError(28, "full")])
def test_an_error_of_the_output_is_not_a_lack_of_input(prompts, sent, error, monkeypatch):
    """It is raised, and no rank is told that the front end has no input."""

    def follow(_rank):
        raise error

    def read(_prompt):
        import time

        time.sleep(60)

    monkeypatch.setattr(builtins, "input", read)
    prompts.add(0, InputRequest(1, 1, "input", "?"))
    with pytest.raises(type(error), match=str(error).split("]")[-1].strip()):
        prompts.ask(follow)
    assert sent == []


def test_a_stop_keeps_the_other_requests(prompts, sent, monkeypatch):
    """One prompt is shown; `stop` refuses both requests."""
    shown, stopped = [], []

    def read(prompt):
        import time

        shown.append(prompt)
        stopped.append(True)
        time.sleep(60)

    monkeypatch.setattr(builtins, "input", read)
    for rank in (0, 1):
        prompts.add(rank, InputRequest(1, 1, "input", "?"))
    prompts.ask(lambda _: not stopped, lambda: bool(stopped))
    assert shown == ["[rank 0] ?"]
    assert sent == []
    prompts.stop()
    assert [(rank, reply.refusal) for rank, reply in sent] == [
        (rank, "the cell is being stopped.") for rank in (0, 1)
    ]


def test_the_state_keeps_the_case_of_calls(prompts, monkeypatch):
    """Only the first letter of the message is made a capital."""
    seen = []
    prompts.report = seen.append
    monkeypatch.setattr(builtins, "input", lambda _: "x")
    prompts.add(0, InputRequest(1, 1, "input", "?"))
    prompts.ask(lambda _: False)
    assert seen == ["Rank 0 is at a prompt of input()", ""]


def test_a_rank_that_waits_no_longer_as_its_prompt_begins(prompts, monkeypatch):
    """The user is not asked, and the cell is not interrupted, however soon that is noticed."""
    monkeypatch.setattr("workbench.cluster.prompts._FOLLOW_S", 0)
    monkeypatch.setattr(builtins, "input", lambda _: time.sleep(60))
    for _ in range(300):
        prompts.add(0, InputRequest(1, 1, "input", "?"))
        prompts.ask(lambda _: False)


def test_a_request_without_its_cell(cluster, sent, monkeypatch):
    """The kernel refuses it: the rank would wait forever."""
    cluster.run("1", sink=TextSink())
    state = cluster._state
    monkeypatch.setattr(state.processes.engines, "send", lambda *one: sent.append(one))
    state.receive(1, InputRequest(77, 5, "breakpoint", "(Pdb) "))
    assert sent == [(1, InputReply(5, None, NO_CELL))]


def test_a_request_at_the_end_of_its_cell():
    """A thread that asks after its cell's requests were ended is not left waiting."""
    sent, interrupts = [], Interrupts()
    prompts = RankPrompts(sent.append, interrupts)
    with interrupts.cell_runs(1):
        with prompts.installed():
            pass
        with pytest.raises(EOFError, match="the cell has ended"):
            prompts.ask("late?")
    assert sent == []
