"""Pauses of a VM, told apart from slow ranks, slow links and shared disks."""

import contextlib
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from iterations import MS, record, store
from timers import InThread, eventually
from vm_sets import vms

import workbench as wb
from workbench.advisor import explain
from workbench.cluster import TextSink
from workbench.testbed import why_not
from workbench.timings.stragglers import find

PAIRS = {0: "vm1", 1: "vm1", 2: "vm2", 3: "vm2"}
PAUSE_MS = 300


def iteration(index, stopped):
    """An iteration of all ranks; `stopped` has the phase in which a rank was stopped, by rank."""
    waited = PAUSE_MS if any(phase != "exposed" for phase in stopped.values()) else 0
    for rank in PAIRS:
        row = record(index, world=len(PAIRS))
        where = stopped.get(rank, "exposed" if waited else "")
        if where:
            name = f"{where}_ns"
            longer = {name: getattr(row, name) + PAUSE_MS * MS}
            if where == "exposed":
                longer["communication_ns"] = row.communication_ns + PAUSE_MS * MS
            row = replace(row, duration_ns=row.duration_ns + PAUSE_MS * MS, **longer)
        yield rank, row


def rows(**stopped):
    """Sixty iterations; `stopped` has that of some of them, such as ``at30={0: "forward"}``."""
    found = []
    for index in range(60):
        found += iteration(index, stopped.get(f"at{index}", {}))
    return store(*found).rows()


def named(found):
    return [(one["kind"], one["vm"], one["rank"]) for one in found]


def test_a_pause_of_a_vm_is_named_with_its_length_and_iteration():
    """Its ranks may be in different phases; the others wait for the length of the pause."""
    (found,) = find(rows(at30={2: "forward", 3: "backward"}), PAIRS)
    assert (found["kind"], found["vm"], found["rank"]) == ("pause", "vm2", -1)
    assert (found["first_iteration"], found["last_iteration"]) == (30, 30)
    assert found["how_often"] == "one iteration"
    assert found["excess_us"] == pytest.approx(PAUSE_MS * 1e3)
    assert found["late_us"] == pytest.approx(PAUSE_MS * 1e3)


def test_one_rank_may_be_an_iteration_ahead():
    """One is stopped in its optimizer's step, the other in its next forward: one pause."""
    (found,) = find(rows(at30={2: "optimizer"}, at31={3: "forward"}), PAIRS)
    assert (found["kind"], found["vm"]) == ("pause", "vm2")
    assert (found["first_iteration"], found["last_iteration"]) == (30, 31)


OTHERS = {
    "one rank of the VM": {2: "forward"},
    "one rank of each VM": {1: "forward", 2: "forward"},
    "all ranks of all VMs": dict.fromkeys(PAIRS, "forward"),
    "all ranks of the VM wait for its disk": {2: "data", 3: "data"},
    "the network": dict.fromkeys(PAIRS, "exposed"),
}


@pytest.mark.parametrize("stopped", OTHERS.values(), ids=OTHERS)
def test_what_is_no_pause_of_a_vm(stopped):
    """Ranks of several VMs, one rank of a VM, a phase in which ranks may wait for a disk."""
    assert "pause" not in [one["kind"] for one in find(rows(at30=stopped), PAIRS)]


def test_one_rank_is_named_as_before():
    """The counter-test of a pause: only one rank of the VM was stopped."""
    found = find(rows(at30={2: "forward"}), PAIRS)
    assert named(found) == [("slow compute", "", 2)]


def test_what_repeats_is_no_pause():
    """A VM whose ranks are late every ten iterations has a cause in the training."""
    often = {f"at{index}": {2: "forward", 3: "forward"} for index in range(5, 60, 10)}
    assert "pause" not in [one["kind"] for one in find(rows(**often), PAIRS)]


def test_without_the_vms_there_is_no_pause():
    """VMs that are unknown, or one of them."""
    paused = rows(at30={2: "forward", 3: "backward"})
    for known in (None, {0: "vm1", 2: "vm2"}, dict.fromkeys(PAIRS, "vm1")):
        assert "pause" not in [one["kind"] for one in find(paused, known)]


def explained(found, names):
    timings = SimpleNamespace(rows=lambda: found, vm_names=lambda: names)
    return explain(SimpleNamespace(timings=timings, fabric=None))


def test_explain_names_the_pause_once():
    """With its VM, length and iteration, and its ranks are not named as well."""
    causes = explained(rows(at30={2: "forward", 3: "backward"}), PAIRS)
    (pause,) = (one for one in causes if one.name.startswith("pause of VM vm2"))
    assert "in iteration 30 all ranks of vm2 stopped at once for 300 ms" in pause.evidence
    assert pause.saving_us == pytest.approx(PAUSE_MS * 1e3 / 60)
    assert not [one for one in causes if one.name.startswith(("waiting for", "uneven"))]


def test_explain_says_where_a_pause_cannot_be_told_apart():
    """A rank that is the only one of its VM; not a rank with others there."""
    names = PAIRS | {3: "vm3"}
    text = "rank 2 is the only one of VM vm2, so a pause of the VM"
    evidence = {one.name: one.evidence for one in explained(rows(at30={2: "forward"}), names)}
    assert text in evidence["waiting for rank 2"]
    evidence = {one.name: one.evidence for one in explained(rows(at30={2: "forward"}), PAIRS)}
    assert "the only one" not in evidence["waiting for rank 2"]


# on VMs

MODEL = """
import pathlib, time, torch
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.wait_for = None
    def forward(self, x):
        time.sleep(0.05)
        if self.wait_for:
            (self.wait_for / str(rank)).touch()
            while not (self.wait_for / "on").exists():
                time.sleep(0.002)
        return self.layer(x)
model = Slow()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
def train(n, folder=""):
    for i in range(n):
        model.wait_for = pathlib.Path(folder) if folder and i == n // 2 else None
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
train(20)
"""
LONG_S = 1.0


@pytest.fixture(scope="module")
def cluster():
    """One rank on the first VM, two on the second."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with (
        vms(2) as machines,
        wb.Cluster(hosts=machines.hosts((1, 2)), ssh_config=machines.ssh_config) as found,
    ):
        found.run(MODEL, sink=TextSink())
        yield found


def stopped_while_training(cluster, pids, folder):
    """Train, and stop the processes for a time in a forward; return for how long, and who is late.

    The ranks wait in that forward until the processes are stopped, then the others go on.
    """
    first = int(cluster.timings.to_frame()["iteration"].max()) + 1

    def stop():
        try:
            assert eventually(
                lambda: all((folder / str(info.rank)).exists() for info in cluster.ranks)
            )
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            (folder / "on").touch()
            time.sleep(LONG_S)
            return time.monotonic() - began
        finally:  # the ranks wait for the file without a time limit
            (folder / "on").touch()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    length = InThread(stop)
    cluster.run(f"train(60, {str(folder)!r})", sink=TextSink())
    found = cluster.timings.stragglers()
    return length.join(), found[found["first_iteration"] >= first]


@pytest.mark.slow
@pytest.mark.timing
def test_a_vm_whose_processes_are_stopped(cluster, tmp_path):
    """All ranks and the agent of the second VM: the pause is named, with at least its length."""
    agent = cluster.agents[1].hello.pid
    pids = [info.pid for info in cluster.ranks if info.vm == "vm2"]
    length, found = stopped_while_training(cluster, [agent, *pids], tmp_path)
    pauses = found[found["kind"] == "pause"]
    assert pauses["vm"].tolist() == ["vm2"]
    assert pauses["excess_us"].iloc[0] >= 0.9 * length * 1e6
    assert pauses["late_us"].iloc[0] >= 0.5 * length * 1e6
    assert pauses["how_often"].tolist() == ["one iteration"]


@pytest.mark.slow
@pytest.mark.timing
def test_one_rank_of_a_vm_that_is_stopped(cluster, tmp_path):
    """No pause of the VM: the rank is named."""
    (pid,) = (info.pid for info in cluster.ranks if info.rank == 2)
    _, found = stopped_while_training(cluster, [pid], tmp_path)
    assert "pause" not in found["kind"].tolist()
    assert 2 in found[found["how_often"] == "one iteration"]["rank"].tolist()
