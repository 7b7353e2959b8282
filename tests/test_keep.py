"""Clusters that outlive their kernel: kept, met again, and given up when nobody comes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from clusters import gone, quiet, training
from timers import within

import workbench as wb
from workbench.errors import ClusterStopped, NoCluster, StartFailed, UsageError
from workbench.vms import vms, why_not

KERNEL = """
import os, sys, time
import workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster({arguments}).start()
cluster.run('''
import time
kept = rank * 10
{training}
''', sink=TextSink())
print(cluster.name, *[info.pid for info in cluster.ranks], flush=True)
{then}
"""
KILLED = "os.kill(os.getpid(), 9)"
IN_A_CELL = """
cluster.run_in_background({source!r}, sink=TextSink())
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A place of its own for what kernels write down."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def attach(runtime):
    """Attach to clusters, and stop them after the test."""
    met = []

    def meet(name=None):
        met.append(wb.Cluster.attach(name))
        return met[-1]

    yield meet
    for cluster in met:
        cluster.stop()
    with contextlib.suppress(NoCluster):  # the test failed before it met its own
        wb.Cluster.attach().stop()


def kernel(then, arguments="n=2, keep='60s'"):
    """Run a kernel to its end; return the cluster's name and the ranks' processes."""
    source = KERNEL.format(arguments=arguments, then=then, training=training(5))
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout, done.stderr
    name, *pids = done.stdout.split()
    return name, [int(pid) for pid in pids]


@pytest.mark.parametrize("then", ["", KILLED], ids=["ended", "killed"])
def test_the_next_kernel_finds_it(runtime, attach, then):
    """Ranks, variables, optimizers and timings are as the earlier kernel left them."""
    name, pids = kernel(then)
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


def test_a_cell_that_still_runs_is_waited_for(attach, capsys):
    """What the ranks were doing when the kernel died is done to its end, and timed; it is said."""
    _, _ = kernel(IN_A_CELL.format(source="time.sleep(6); train(4); late = rank"))
    capsys.readouterr()
    cluster = attach()
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert f"Attaching to {cluster.name}: waiting for the cell that still runs" in said
    assert cluster["late"] == [0, 1]
    quiet(cluster, "1")
    assert len(cluster.timings) == 18


@pytest.mark.parametrize("lines", [50_000, 200_000])
def test_a_flood_goes_on_without_its_kernel(attach, lines):
    """Ranks that print without end wait neither for the kernel that died nor for the next."""
    source = f"time.sleep(1)\nfor at in range({lines}): print(at)\nlate = rank"
    kernel(IN_A_CELL.format(source=source))
    cluster = attach()
    assert cluster["late"] == [0, 1]
    assert quiet(cluster, "print('next')").output == "[ranks 0-1] next\n"


def test_a_cell_that_is_stuck_can_be_interrupted(attach):
    """Ctrl-C while attaching frees the ranks; they are usable, and keep their variables."""
    source = "if rank: time.sleep(100)\nhvd.allreduce(torch.ones(1), name='stuck')"
    kernel(IN_A_CELL.format(source=source))
    main = threading.main_thread().ident
    timer = threading.Timer(3.0, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    cluster = attach()
    timer.join()
    assert cluster["kept"] == [0, 10]
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=20)
    assert total.values == {0: 2.0, 1: 2.0}


def test_a_rank_that_another_has_left_alone_is_freed(attach, capsys):
    """Rank 1 has ended the cell when the kernel dies; nobody else is there to free rank 0."""
    source = "if rank == 0: time.sleep(1); hvd.allreduce(torch.ones(1), name='alone')"
    kernel(IN_A_CELL.format(source=source))
    began = time.monotonic()
    cluster = attach()
    assert time.monotonic() - began < 30
    assert "rank 0 waited for a rank that has ended the cell" in capsys.readouterr().out
    assert cluster["kept"] == [0, 10]
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=20)
    assert total.values == {0: 2.0, 1: 2.0}


def test_a_rank_that_works_alone_is_waited_for(attach):
    """Rank 1 has ended the cell; rank 0 does what needs no other."""
    kernel(IN_A_CELL.format(source="if rank == 0: time.sleep(9); late = 1"))
    cluster = attach()
    assert quiet(cluster, "late if rank == 0 else None").values == {0: 1, 1: None}
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=20)
    assert total.values == {0: 2.0, 1: 2.0}


def test_a_rank_is_replaced_after_attaching(attach):
    """The new kernel guards the ranks as the one before did."""
    _, pids = kernel("")
    cluster = attach()
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(0.3)
    cluster.restart()
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}


def test_it_is_given_up_when_nobody_comes(runtime):
    """After the time that it was to be kept, no process, no port and no key is left."""
    _, pids = kernel(KILLED, "n=2, keep='3s'")
    assert gone(pids, 20)
    assert within(10, lambda: not list(runtime.glob("workbench-*")))
    with pytest.raises(NoCluster, match="--keep"):
        wb.Cluster.attach()


def test_it_rests_while_nobody_is_there(runtime, attach):
    """Between two kernels nothing of a kept cluster is busy."""
    _, pids = kernel(KILLED)
    kept = [p for p in psutil.process_iter(["cmdline"]) if str(runtime) in str(p.info["cmdline"])]
    every = [*kept, *map(psutil.Process, pids), psutil.Process(pids[0]).parent()]
    assert len(kept) >= 3  # two holders and the controller

    def used_s():
        return sum(sum(process.cpu_times()[:2]) for process in every)

    before, waited_s = used_s(), 2.0
    time.sleep(waited_s)
    assert used_s() - before < waited_s / 2
    attach()


def test_there_is_none_or_there_are_several(attach):
    """Which cluster is meant must be said where it is not clear; a wrong name tells the others."""
    with pytest.raises(NoCluster, match=r"Cannot attach to a cluster: .* none runs"):
        attach()
    (first, _), (second, _) = kernel("", "n=1, keep=60"), kernel("", "n=1, keep=60")
    with pytest.raises(UsageError, match="Name one of"):
        attach()
    with pytest.raises(NoCluster, match="Cannot attach to cluster 'other'"):
        attach("other")
    assert {attach(first).name, attach(second).name} == {first, second}


def test_keys_are_for_this_user_only(runtime, attach):
    """What the next kernel needs lies where nobody else can read it."""
    kernel("")
    (folder,) = Path(runtime).glob("workbench-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "cluster.json").stat().st_mode & 0o077 == 0
    attach()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_ranks_on_vms_are_met_again(attach):
    """The same over ssh: the connections outlive the kernel too."""
    with vms(2) as machines:
        arguments = f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=60"
        _, pids = kernel(KILLED, arguments)
        cluster = attach()
        assert [info.vm for info in cluster.ranks] == ["vm1", "vm2"]
        assert cluster["kept"] == [0, 10]
        assert [sample.nics[0].name for sample in cluster.samples().values()] == ["eth0", "eth0"]
        cluster.stop()
        assert gone(pids)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("cell", ["", "import time; time.sleep(3)\nhvd.allreduce(torch.ones(1))"])
def test_a_vm_that_went_meanwhile_is_lost(attach, runtime, cell):
    """The cluster is met without it, what waits for its rank is freed, and the rest goes on."""
    then = IN_A_CELL.format(source=cell) if cell else KILLED
    with vms(2) as machines:
        arguments = f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=60"
        kernel(then, arguments)
        machines.cut("vm2")
        assert within(30, lambda: len(list(runtime.glob("workbench-*/agent-*.sock"))) == 1)
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


# starts that fail


DIES = """
import os, sys
if "workbench.rank.agent" in sys.orig_argv:
    os.register_at_fork(after_in_child={how})
"""


def told(**options):
    """What a start that fails says, which is the same with `keep`; no process is left."""
    texts = []
    for keep in (None, 60):
        cluster = wb.Cluster(keep=keep, **options)
        with pytest.raises(StartFailed) as caught:
            cluster.start()
        assert cluster.state == "stopped"
        texts.append(str(caught.value))
    plain, kept = (re.sub(r"process \d+", "process", text) for text in texts)
    assert kept == plain
    return kept


def waited_for_loss(cluster):
    """Ask for a cell once the rank is known to be lost."""
    within(10, lambda: cluster.ranks[0].state == "dead")
    quiet(cluster, "1")


def nothing_is_left(runtime):
    assert not list(runtime.glob("workbench-*"))
    with pytest.raises(NoCluster):
        wb.Cluster.attach()


def test_a_kept_start_names_an_unknown_host(runtime):
    """An ssh that ends at once is heard: an unknown host is told as without `keep`."""
    assert "no-such-host.invalid: its name is not known here" in told(hosts="no-such-host.invalid")
    nothing_is_left(runtime)


def test_a_kept_start_without_ssh(runtime, monkeypatch):
    """A machine without ssh is told as without `keep`."""
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert told(hosts="vm1").startswith("there is no ssh on this machine: install")
    nothing_is_left(runtime)


@pytest.mark.parametrize(
    ("how", "says"),
    [("lambda: os.kill(os.getpid(), 11)", "SIGSEGV"), ("lambda: os._exit(7)", "exit status 7")],
    ids=["killed", "left"],
)
def test_a_kept_start_names_a_rank_that_dies(runtime, tmp_path, monkeypatch, how, says):
    """A rank that ends before it has said hello is named with its end."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DIES.format(how=how))
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    assert says in told(n=1)
    nothing_is_left(runtime)


def test_a_kept_agent_that_is_killed(runtime):
    """A kept agent that is killed is told with its signal, one whose holder is killed as gone."""
    cluster = wb.Cluster(n=1, keep=60).start()
    pid = cluster.ranks[0].pid
    agent = psutil.Process(pid).parent()
    agent.kill()
    with pytest.raises(ClusterStopped, match="agent of this machine was killed by SIGKILL"):
        waited_for_loss(cluster)
    cluster.stop()
    cluster = wb.Cluster(n=1, keep=60).start()
    pid = cluster.ranks[0].pid
    psutil.Process(pid).parent().parent().kill()
    with pytest.raises(ClusterStopped, match="is gone, and so is the process that kept it"):
        waited_for_loss(cluster)
    cluster.stop()
    assert gone([pid])
    nothing_is_left(runtime)


def test_a_folder_whose_name_is_too_long(runtime, monkeypatch):
    """A socket's name has a most length: a runtime folder that passes it is told, at once."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime / ("long" * 25)))
    with pytest.raises(StartFailed, match=r"too long for a socket .* JUPYTER_RUNTIME_DIR"):
        wb.Cluster(n=1, keep=60).start()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_kept_start_on_vms_names_its_cause(runtime, tmp_path):
    """A refused key, and a Python that is not there, are told as without `keep`."""
    with vms(1) as machines:
        other = tmp_path / "other"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True
        )
        config = tmp_path / "config"
        config.write_text(
            re.sub(r"IdentityFile .*", f"IdentityFile {other}", machines.ssh_config.read_text())
        )
        assert "vm1: it refused the key" in told(hosts="vm1", ssh_config=config)
        hosts = [{"name": "vm1", "python": "/opt/none/bin/python"}]
        assert "no such Python" in told(hosts=hosts, ssh_config=machines.ssh_config)
    nothing_is_left(runtime)
