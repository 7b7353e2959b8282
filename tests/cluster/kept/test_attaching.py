"""Kept clusters: attached to again, and stopped if nobody attaches."""

import errno
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from clusters import gone, quiet
from kept_clusters import IN_A_CELL, IN_A_CHANGE, KILLED, controllers, kernel
from timers import FAR_S, InThread, eventually

import workbench as wb
from workbench.agent.record_stream import NAME
from workbench.cluster import processes
from workbench.cluster.agent_channel import RECONNECT_S
from workbench.errors import ClusterStopped, NoCluster, StartFailed, UsageError
from workbench.testbed import vms, why_not


def test_the_next_kernel_finds_it(runtime, attach):
    """Ranks, variables, optimizers and timings are as the earlier kernel left them."""
    name, pids = kernel("")
    cluster = attach()
    assert (cluster.name, cluster.state) == (name, "ready")
    assert [info.pid for info in cluster.ranks] == pids
    assert cluster["kept"] == [0, 10]
    assert len(cluster.timings) == 10
    assert len(cluster.timings.collectives()) == 20
    quiet(cluster, "train(3)")
    frame = cluster.timings.to_frame()
    assert sorted(frame["iteration"].unique()) == list(range(8))
    assert not cluster.timings.collectives().empty
    cluster.stop()
    assert gone(pids)
    assert not list(runtime.glob("workbench-*"))


@pytest.mark.soak
def test_a_cell_that_still_runs_is_waited_for(attach, capsys):
    """A cell that runs when the kernel dies is run to its end and timed; a message says so."""
    _, _ = kernel(IN_A_CELL.format(source="time.sleep(6); train(4); late = rank"))
    capsys.readouterr()
    cluster = attach()
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert f"Attaching to {cluster.name}: waiting for the cell that still runs" in said
    assert cluster["late"] == [0, 1]
    quiet(cluster, "1")
    assert len(cluster.timings) == 18


CHANGES = {
    "more": ("cluster.resize(3)", [0, 10, None]),
    "fewer": ("cluster.resize(1)", [0]),
    "replaced": ("cluster.restart([0])", [None, 10]),
}
USUAL_CHANGES = {("replaced", "join")}
"""`make soak` has every pair."""


@pytest.mark.parametrize(
    ("change", "kept", "step"),
    [
        pytest.param(
            *CHANGES[name],
            step,
            id=f"{name}-{step}",
            marks=[] if (name, step) in USUAL_CHANGES else pytest.mark.soak,
        )
        for name in CHANGES
        for step in ("shutdown_ring", "join", "init_ring")
    ],
)
def test_a_change_of_ranks_that_no_kernel_has_finished(attach, step, change, kept):
    """That is reported at once; the remaining ranks have their variables, and no other is left."""
    _, pids = kernel(IN_A_CHANGE.format(step=step, change=change))
    cluster = attach()
    assert cluster.state == "failed"
    with pytest.raises(ClusterStopped, match=rf"kernel ended before .* resize -n {len(kept)},"):
        quiet(cluster, "1")
    found = [info.state for info in cluster.ranks], cluster.message
    cluster.restart()
    # a step before the others, where rank 0 had not ended yet when the kernel died
    values = quiet(cluster, "globals().get('kept')").values
    assert all(values[rank] in {value, 10 * rank} for rank, value in enumerate(kept)), (
        values,
        found,
    )
    assert values.keys() == set(range(len(kept)))
    total = quiet(cluster, "import torch; hvd.allreduce(torch.ones(1), op=hvd.Sum).item()").values
    assert total == dict.fromkeys(range(len(kept)), float(len(kept)))
    ranks = [info.pid for info in cluster.ranks]
    stayed = [pid for pid in pids if pid in ranks]
    assert len(stayed) >= min(len(pids), len(kept)) - 1
    agent = psutil.Process(ranks[0]).parent()
    # the process that merges the records of three ranks or more is no rank
    assert eventually(lambda: {c.pid for c in agent.children() if c.name() != NAME} == {*ranks})


@pytest.mark.soak
@pytest.mark.parametrize("step", ["shutdown_ring", "init_ring"])
def test_a_ring_that_no_kernel_has_formed(attach, step):
    """A cell has failed and the ring was being rebuilt: it is, and variables are kept."""
    fails = "cluster.run('1 / rank; hvd.allreduce(torch.ones(1))', sink=TextSink())"
    kernel(IN_A_CHANGE.format(step=step, change=fails))
    cluster = attach()
    assert cluster.state == "ready"
    total = quiet(cluster, "hvd.allreduce(torch.ones(1), op=hvd.Sum).item()").values
    assert total == {0: 2.0, 1: 2.0}
    assert cluster["kept"] == [0, 10]


@pytest.mark.soak
def test_a_kept_cluster_whose_disk_is_full(runtime, attach, monkeypatch):
    """A change that cannot be saved is not begun; the cluster goes on, and can be changed later."""

    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writes = processes.write_private
    monkeypatch.setattr(processes, "write_private", full)
    cluster = wb.Cluster(n=2, keep=600)
    with pytest.raises(StartFailed, match=r"No space left on device\). Make room there"):
        cluster.start()
    assert cluster.state == "stopped"
    assert not list(runtime.glob("workbench-*"))
    monkeypatch.setattr(processes, "write_private", writes)
    with cluster:
        quiet(cluster, "kept = rank")
        monkeypatch.setattr(processes, "write_private", full)
        with pytest.raises(StartFailed, match="Make room there"):
            cluster.resize(1)
        assert (cluster.state, cluster.n, cluster["kept"]) == ("ready", 2, [0, 1])
        monkeypatch.setattr(processes, "write_private", writes)
        cluster.resize(1)
        assert cluster["kept"] == [0]


@pytest.mark.soak
@pytest.mark.parametrize("lines", [40_000, 200_000])
def test_a_flood_goes_on_without_its_kernel(attach, lines):
    """Ranks that print without end wait neither for the kernel that died nor for the next."""
    source = f"time.sleep(1)\nfor at in range({lines}): print(at)\nlate = rank"
    kernel(IN_A_CELL.format(source=source))
    cluster = attach()
    assert cluster["late"] == [0, 1]
    assert quiet(cluster, "print('next')").output == "[ranks 0-1] next\n"


@pytest.mark.soak
def test_a_cell_at_a_prompt_is_interrupted(attach, capsys):
    """Nobody can answer what the earlier kernel asked: a message says so, and the cell ends."""
    asks = "from workbench.rank import session\nprompts = session._session._prompts\n"
    source = f"{asks}if rank: prompts.ask('?', 'breakpoint')\nhvd.allreduce(torch.ones(1))"
    # a notebook asks in its main thread; here nobody does
    keep = "import workbench.cluster.prompts as p\np.CellPrompts.ask = lambda *_: 0.0\n"
    kernel(keep + IN_A_CELL.format(source=source))
    capsys.readouterr()
    cluster = attach()
    assert "rank 1 is at a breakpoint in a cell of an earlier kernel" in capsys.readouterr().out
    assert cluster.state == "ready"
    assert cluster["kept"] == [0, 10]


@pytest.mark.soak
def test_a_cell_that_is_stuck_can_be_interrupted(attach):
    """Ctrl-C while attaching frees the ranks; they are usable, and keep their variables."""
    source = "if rank: time.sleep(100)\nhvd.allreduce(torch.ones(1), name='stuck')"
    kernel(IN_A_CELL.format(source=source))
    main = threading.main_thread().ident
    interrupt = InThread(lambda: (time.sleep(3.0), signal.pthread_kill(main, signal.SIGINT)))
    cluster = attach()
    interrupt.join()
    assert cluster["kept"] == [0, 10]
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=FAR_S)
    assert total.values == {0: 2.0, 1: 2.0}


@pytest.mark.soak
def test_a_rank_that_works_alone_is_waited_for(attach):
    """Rank 1 has ended the cell; rank 0 does what needs no other."""
    kernel(IN_A_CELL.format(source="if rank == 0: time.sleep(9); late = 1"))
    cluster = attach()
    assert quiet(cluster, "late if rank == 0 else None").values == {0: 1, 1: None}
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=FAR_S)
    assert total.values == {0: 2.0, 1: 2.0}


@pytest.mark.soak
def test_a_rank_is_replaced_after_attaching(attach):
    """The new kernel guards the ranks as the one before did."""
    _, pids = kernel("")
    cluster = attach()
    os.kill(pids[1], signal.SIGKILL)
    assert eventually(lambda: cluster.ranks[1].state == "dead")
    cluster.restart()
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}


def test_it_is_given_up_when_nobody_comes(runtime):
    """After the time that it was to be kept, no process, no port and no key is left."""
    _, pids = kernel(KILLED, "n=2, keep='3s'")
    assert gone(pids)
    assert eventually(lambda: not list(runtime.glob("workbench-*")))
    with pytest.raises(NoCluster, match="--keep"):
        wb.Cluster.attach()


def sleeps(pid, thread):
    """How often a thread has given its core back by itself."""
    status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[1])


@pytest.mark.soak
def test_it_rests_while_nobody_is_there(runtime, attach):
    """Between two kernels nothing of a kept cluster is busy, but Horovod's cycles in each rank."""
    _, pids = kernel(KILLED)
    others = controllers(runtime)
    assert others
    ranks = [psutil.Process(pid) for pid in pids]
    others.append(ranks[0].parent())

    def threads(process):
        """CPU time in seconds, and how often it slept, of each thread."""
        used = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
        return {thread: (used_s, sleeps(process.pid, thread)) for thread, used_s in used.items()}

    began = time.monotonic()
    before = {process: threads(process) for process in (*ranks, *others)}
    time.sleep(2)
    after = {process: threads(process) for process in before}
    waited_s = time.monotonic() - began
    busy = {}
    for process, now in after.items():
        earlier = {thread: before[process].get(thread, (0.0, 0)) for thread in now}
        busy[process] = sorted(
            (used_s - earlier[thread][0], slept - earlier[thread][1])
            for thread, (used_s, slept) in now.items()
        )
    # Horovod's cycles of a millisecond take what this machine needs for them, and sleep in between.
    horovods = [busy[rank].pop() for rank in ranks]
    assert all(slept > 50 * waited_s for _, slept in horovods), horovods
    limit_s = max(waited_s / 10, *(2 * used_s for used_s, _ in horovods))
    used = {process: sum(used_s for used_s, _ in threads) for process, threads in busy.items()}
    assert max(used.values()) < limit_s, (used, horovods)
    attach()


@pytest.mark.soak
def test_there_is_none_or_there_are_several(attach):
    """The cluster must be named if several run; the error for a wrong name lists the others."""
    with pytest.raises(NoCluster, match=r"Cannot attach to a cluster: .* none runs"):
        attach()
    (first, _), (second, _) = kernel("", "n=1, keep=600"), kernel("", "n=1, keep=600")
    with pytest.raises(UsageError, match="Name one of"):
        attach()
    with pytest.raises(NoCluster, match="Cannot attach to cluster 'other'"):
        attach("other")
    assert {attach(first).name, attach(second).name} == {first, second}


@pytest.mark.soak
def test_keys_are_for_this_user_only(runtime, attach):
    """The files that the next kernel needs are readable by nobody else."""
    kernel("")
    (folder,) = Path(runtime).glob("workbench-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "cluster.json").stat().st_mode & 0o077 == 0
    attach()


@pytest.mark.soak
def test_a_damaged_state_file_of_a_cluster_that_runs(runtime, attach):
    """It is named; that no cluster ran would not be true."""
    name, _ = kernel("")
    (path,) = Path(runtime).glob("workbench-*/cluster.json")
    content = path.read_text()
    path.write_text(content[:100])
    for given in (None, name):
        with pytest.raises(NoCluster, match=r"cluster.json is damaged, and its cluster still runs"):
            attach(given)
    path.write_text(content)
    assert attach().name == name


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.soak
def test_a_kernel_attaches_to_ranks_on_vms(attach):
    """The same over ssh: the connections outlive the kernel too."""
    with vms(2) as machines:
        arguments = (
            f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=600"
        )
        _, pids = kernel(KILLED, arguments)
        cluster = attach()
        assert [info.vm for info in cluster.ranks] == ["vm1", "vm2"]
        assert cluster["kept"] == [0, 10]
        assert [sample.nics[0].name for sample in cluster.samples().values()] == ["eth0", "eth0"]
        cluster.stop()
        assert gone(pids)


@pytest.mark.soak
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("", id="no cell"),
        pytest.param("import time; time.sleep(3)\nhvd.allreduce(torch.ones(1))", id="a cell"),
    ],
)
def test_a_vm_that_went_meanwhile_is_lost(attach, cell):
    """The kernel attaches without it, what waits for its rank is freed, and the rest continues."""
    then = IN_A_CELL.format(source=cell) if cell else KILLED
    with vms(2) as machines:
        arguments = f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=30"
        kernel(then, arguments)
        machines.cut("vm2")
        cluster = attach()
        assert cluster.state == "failed"
        assert "rank 1: vm2 was lost while no kernel was there" in cluster.message
        with pytest.raises(ClusterStopped, match="vm2 was lost"):
            quiet(cluster, "1")
        cluster.resize()
        assert [info.vm for info in cluster.ranks] == ["vm1"]
        assert cluster["kept"] == [0]
        assert quiet(cluster, "float(hvd.allreduce(torch.ones(1)))").values == {0: 1.0}
        cluster.stop()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.soak
def test_a_vm_that_answers_late_is_waited_for(attach):
    """It has `keep` seconds: longer than a kernel that trains waits for a reconnect."""
    with vms(2) as machines:
        arguments = (
            f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=300"
        )
        kernel(KILLED, arguments)
        machines.cut("vm2")
        back = InThread(lambda: (time.sleep(RECONNECT_S + 5), machines.mend("vm2")))
        cluster = attach()
        back.join()
        assert cluster.state == "ready"
        assert cluster["kept"] == [0, 10]
        assert quiet(cluster, "float(hvd.allreduce(torch.ones(1)))").values == {0: 1.0, 1: 1.0}
        cluster.stop()
