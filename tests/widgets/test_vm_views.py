"""One VM as the panel gets it, if it answers late or wrongly."""

import time

import pytest

from workbench.cluster.agent_channel import Question
from workbench.resources import Unknown, take_snapshot
from workbench.resources.counters import Sampler
from workbench.widgets.vm_watch import WAIT_S, VmView
from workbench.wire.agent_messages import Answer, Facts


class Late:
    """An agent whose answers come when the test says so, however long they took."""

    name, local, lost = "vm2", False, ""

    def __init__(self):
        self.facts = Facts(None, take_snapshot().to_plain(), {}, {}, [], {})
        self.open = []

    def post(self, kind):
        question = Question()
        self.open.append((kind, question))
        return question

    def answer(self, question, deadline):
        return Unknown("not yet") if question.answer is None else question.answer.answer

    def reply(self, kind, answer, took_s=0.01):
        """Answer what was asked of a kind."""
        (question,) = [one for asked, one in self.open if asked == kind]
        self.open.remove((kind, question))
        question.asked = time.monotonic() - took_s
        question.resolve(Answer("1", answer))


@pytest.fixture
def agent():
    return Late()


def tick(view):
    """Return what is reported in a second in which the VM is not waited for."""
    view.request_sample()
    return view.sample(time.monotonic())


def test_a_late_answer_is_reported_in_the_next_second(agent):
    """No second request is sent while one is open: nothing accumulates for a slow VM."""
    view = VmView(agent)
    for _ in range(3):
        assert tick(view) == {"unknown": "not yet"}
        assert [kind for kind, _ in agent.open].count("sample") == 1
    agent.reply("sample", {"time": 1.0}, took_s=3 * WAIT_S)
    assert tick(view) == {"time": 1.0}
    agent.reply("sample", {"time": 2.0}, took_s=2 * WAIT_S)
    assert tick(view) == {"time": 2.0}


def test_an_answer_in_time_is_never_repeated(agent):
    """Once the VM answers quickly, each second has a sample of its own or none."""
    view = VmView(agent)
    view.request_sample()
    agent.reply("sample", {"time": 1.0})
    assert view.sample(time.monotonic()) == {"time": 1.0}
    assert tick(view) == {"unknown": "not yet"}


def test_the_hardware_is_that_of_the_start_until_it_is_reported_again(agent):
    """A VM is shown at once; what it reports later replaces it."""
    view = VmView(agent)
    assert not view.update()
    assert view.to_plain()["snapshot"] == agent.facts.snapshot
    anew = {**agent.facts.snapshot, "taken_at": 17.0}
    agent.reply("snapshot", anew)
    assert view.update()
    assert view.to_plain()["snapshot"] == anew
    assert not view.update()


def test_a_lost_vm_has_neither_snapshot_nor_findings(agent):
    """Its loss is reported once, with the reason."""
    view = VmView(agent)
    agent.lost = "vm2 does not answer any more"
    assert view.update()
    assert not view.update()
    told = view.to_plain()
    assert told["snapshot"] == tick(view) == {"unknown": agent.lost}
    assert told["findings"] == []


def test_what_cannot_be_read_is_reported_as_such(agent):
    """A snapshot that is broken costs its own VM only, and is not taken for a sound one."""
    view = VmView(agent)
    agent.reply("snapshot", {"version": 1})
    assert view.update()
    told = view.to_plain()
    assert told["snapshot"]["unknown"].startswith("cannot be read: SnapshotError: ")
    assert told["findings"] == []


def test_what_is_used_now_is_judged_too(agent):
    """A NIC that loses packets, a GPU that is allocated and idle: the next check finds them."""
    snapshot = agent.facts.snapshot
    sample = Sampler().sample().to_plain()
    nic = {name: {"unknown": "not read"} for name in sample["nics"][0]}
    sample["nics"] = [{**nic, "name": "mlx5_0", "errors": {"out_of_sequence": 50.0}}]
    view = VmView(agent)
    assert told_of(view, "mlx5_0") == []
    view.request_sample()
    agent.reply("sample", sample)
    view.sample(time.monotonic())
    agent.reply("snapshot", snapshot)
    assert view.update()
    assert told_of(view, "mlx5_0") == ["rdma_errors"]


def told_of(view, subject):
    """The rules that found something of a subject."""
    return [one["rule"] for one in view.to_plain()["findings"] if one["subject"] == subject]
