"""``launcher="slurm"``, with a real Slurm: two nodes on this machine."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import slurm
from clusters import BeginSink, children, gone, quiet, with_support
from timers import eventually, when

import workbench as wb
from workbench.cluster.launchers import slurm_commands
from workbench.cluster.launchers.slurm import _GUARD
from workbench.cluster.launchers.slurm_commands import hosts_of
from workbench.cluster.launchers.slurm_job import Job
from workbench.errors import RanksFailed, StartFailed, UsageError
from workbench.widgets.clusters import cluster_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not())),
]
VALUES = """
import os, torch
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
values = total, os.getenv("CUDA_VISIBLE_DEVICES"), os.getenv("SLURMD_NODENAME")
"""
HANG = BeginSink.PRINT + "import torch\nwhile True: hvd.allreduce(torch.ones(1))\n"


@pytest.fixture(scope="module")
def daemons():
    """Slurm's daemons, for all tests of this file."""
    with slurm.running() as folder:
        yield folder


@pytest.fixture(autouse=True)
def nothing_left(daemons):
    """Each test begins and ends without a job."""
    yield daemons
    for job in slurm.slurm("squeue", "--noheader", "--format=%i").split():
        slurm.slurm("scancel", job)
    assert eventually(slurm.idle)


def take_all():
    """Start a job that has all cores of all nodes; return its id."""
    job = slurm.submit("--nodes=2", "--ntasks=8")
    assert eventually(lambda: slurm.state_of(job) == "RUNNING")
    return job


@contextlib.contextmanager
def all_taken():
    """A job has all cores of all nodes."""
    job = take_all()
    yield
    slurm.slurm("scancel", job)


@contextlib.contextmanager
def inside(*arguments):
    """An allocation, in which this process seems to be."""
    job = slurm.submit(*arguments)
    assert eventually(lambda: slurm.state_of(job) == "RUNNING")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", job)
        patch.setenv("SLURM_NTASKS", "1")  # srun's own variables must not matter
        patch.setenv("SLURM_GPUS_PER_TASK", "3")
        yield job


def ours():
    """The ids of this package's jobs that have not ended."""
    rows = slurm.slurm("squeue", "--noheader", "--format=%i %T %j").splitlines()
    return [row.split()[0] for row in rows if " workbench-" in row and "COMPLETING" not in row]


def test_a_new_allocation_until_it_is_taken_away():
    """Ranks on both nodes with their GPUs; then a node fails, and then the job is cancelled."""
    cluster = wb.Cluster(launcher="slurm", n=4, nodes=2, gpus_per_task=1, time="10")
    shown = []
    cluster.subscribe(lambda: shown.append(cluster.message))
    other = take_all()  # so that the cluster's job waits until that is shown
    waiter = when(
        lambda: any("is pending" in text for text in shown),
        lambda: slurm.slurm("scancel", other),
    )
    with cluster:
        waiter.join()
        (job,) = ours()
        assert any(f"Slurm job {job} is pending" in text for text in shown)
        assert [info.vm for info in cluster.ranks] == ["n1", "n1", "n2", "n2"]
        status = repr(cluster_table(cluster))
        assert f"Slurm job {job}, partition main, nodes n[1-2], time left 9:" in status
        quiet(cluster, VALUES)
        found = cluster.pull(["values"])
        nodes = ["n1", "n1", "n2", "n2"]
        assert [row["values"] for row in found.values()] == [(4.0, "0,1", name) for name in nodes]

        sink = BeginSink()

        def fail():
            slurm.slurm("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=smoke")
            os.kill(cluster.agents[1].hello.pid, signal.SIGKILL)

        when(lambda: sink.begun(4), fail)
        with pytest.raises(RanksFailed, match=r"Slurm reports n2 as DOWN.* \(smoke\)"):
            cluster.run(HANG, sink=sink)
        slurm.slurm("scontrol", "update", "NodeName=n2", "State=RESUME")
        cluster.resize()
        assert [info.vm for info in cluster.ranks] == ["n1", "n1"]

        sink = BeginSink()
        when(sink.begun, lambda: slurm.slurm("scancel", job))
        with pytest.raises(RanksFailed, match=rf"Slurm job {job} was cancelled"):
            cluster.run(HANG, sink=sink)
        with pytest.raises(StartFailed, match=r"cancelled|has ended|no longer exists"):
            cluster.restart()
    assert not ours()


def test_an_existing_allocation():
    """Its tasks are the slots; a stop leaves the job, and no step of ours."""
    with inside("--nodes=2", "--ntasks=4", "--ntasks-per-node=2") as job:
        with wb.Cluster(launcher="slurm", n=2) as cluster:
            assert [info.vm for info in cluster.ranks] == ["n1", "n1"]
            quiet(cluster, "kept = 1")
            cluster.resize(4)
            assert [info.vm for info in cluster.ranks] == ["n1", "n1", "n2", "n2"]
            os.kill(cluster.agents[1].hello.pid, signal.SIGKILL)
            assert eventually(lambda: cluster.state == "failed")
            cluster.restart()
            quiet(cluster, "total = hvd.allreduce(__import__('torch').ones(1), op=hvd.Sum).item()")
            assert cluster.pull(["total"])[3]["total"] == 4.0
            assert cluster.pull(["kept"], "0-1")[1]["kept"] == 1
            with pytest.raises(UsageError, match="have 4 slots"):
                cluster.resize(5)
        steps = ("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%j")
        assert eventually(lambda: slurm.slurm(*steps).split() == ["batch"])
        assert slurm.state_of(job) == "RUNNING"
        with pytest.raises(StartFailed, match=f"n=5: Slurm job {job} has 4 tasks"):
            wb.Cluster(launcher="slurm", n=5).start()
        slurm.slurm("scancel", job)
        assert eventually(slurm.idle)
        with pytest.raises(StartFailed, match=f"SLURM_JOB_ID={job}.*cancelled"):
            wb.Cluster(launcher="slurm", n=1).start()


@pytest.mark.soak
def test_an_interrupt_in_the_queue(ctrl_c):
    """The reason is shown, and the job is cancelled."""
    with all_taken():
        cluster = wb.Cluster(launcher="slurm", n=1)
        waits = when(
            lambda: "Resources" in cluster.message or "Priority" in cluster.message,
            lambda: os.kill(os.getpid(), signal.SIGINT),
        )
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
        waits.join()
        assert not ours()
        assert cluster.state == "stopped"


def test_a_stop_in_the_queue():
    """Another thread stops a cluster that waits."""
    with all_taken():
        cluster = wb.Cluster(launcher="slurm", n=1)
        when(lambda: "pending" in cluster.message, cluster.stop)
        with pytest.raises(wb.ClusterStopped, match="was stopped while it started"):
            cluster.start()
        assert not ours()


@pytest.mark.soak
def test_a_wait_that_is_too_long():
    """The error has Slurm's reason, and the job is cancelled."""
    with all_taken():
        cluster = wb.Cluster(launcher="slurm", n=1, queue_timeout="1s")
        with pytest.raises(StartFailed, match=r"within queue_timeout \(1 s\).*pending: .+"):
            cluster.start()
        assert not ours()


def kernel(code):
    """A process that runs code with the cluster `c`."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import workbench as wb\n{code}"],
        env=with_support(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.soak
def test_a_kernel_that_is_killed_in_the_queue():
    """Its job is cancelled, though the kernel cannot do it."""
    with all_taken():
        process = kernel("wb.Cluster(launcher='slurm', n=1).start()")
        assert eventually(ours)
        process.kill()
        process.communicate()
        assert eventually(lambda: not ours())


STARTED = """
c = wb.Cluster(launcher='slurm', n=2, {}).start()
c.run('kept = rank')
print(c.name)
print(*[rank.pid for rank in c.ranks], *[agent.hello.pid for agent in c.agents], flush=True)
import time
time.sleep(600)
"""


def start_of(process):
    """Return the name of the cluster that a process has started, and the ids of its processes."""
    name = process.stdout.readline().strip()
    while name.startswith("["):
        name = process.stdout.readline().strip()
    return name, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.soak
def test_the_next_kernel_attaches():
    """A kept cluster and its job outlive their kernel."""
    first = kernel(STARTED.format("keep='10m'"))
    name, pids = start_of(first)
    (job,) = ours()
    first.kill()
    first.communicate()
    cluster = wb.Cluster.attach(name)
    try:
        assert [row["kept"] for row in cluster.pull(["kept"]).values()] == [0, 1]
        assert f"Slurm job {job}" in cluster.description
        assert cluster.options.identity == wb.Cluster(launcher="slurm", n=2).options.identity
    finally:
        cluster.stop()
    assert not ours()
    assert gone(pids)


@pytest.mark.soak
def test_a_kernel_that_is_killed():
    """Its job ends with it."""
    process = kernel(STARTED.format(""))
    _, pids = start_of(process)
    process.kill()
    process.communicate()
    assert eventually(lambda: not ours())
    assert gone(pids)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition": "none"}, r"partition 'none' does not exist .*: main, brief"),
        ({"nodes": 3, "n": 3}, r"can never start, and was cancelled: .*\(PartitionConfig\)"),
        ({"partition": "brief", "time": "5"}, r"can never start.*\(PartitionConfig|TimeLimit\)"),
        ({"constraint": "a100"}, "constraint 'a100': no node has such a feature"),
        ({"time": "soon"}, "time='soon': not a time"),
        ({"sbatch": "--begin=never"}, r"sbatch failed \(.*begin.*\)"),
    ],
)
def test_requests_that_slurm_refuses(options, error):
    """Each error has a cause and a fix, and no job is left."""
    with pytest.raises(StartFailed, match=error):
        wb.Cluster(**{"launcher": "slurm", "n": 1, **options}).start()
    assert not ours()


@pytest.mark.soak
def test_no_slurm(daemons, monkeypatch, tmp_path):
    """Without commands, configuration, munge or controller, the error says which.

    The process that cancels the job later, if it can, is ended here: it tries that for a minute.
    """
    config = (daemons / "slurm.conf").read_text()
    cases = [
        ("munge.sock", "none.sock", r"authentication failed \(munge\)"),
        ("SlurmctldPort=", "SlurmctldPort=1", r"\(slurmctld\) does not answer"),
    ]
    for before, after, error in cases:
        path = tmp_path / "slurm.conf"
        path.write_text(config.replace(before, after) + "MessageTimeout=1\n")
        monkeypatch.setenv("SLURM_CONF", str(path))
        with (
            pytest.warns(RuntimeWarning, match="could not be cancelled"),
            pytest.raises(StartFailed, match=error),
        ):
            wb.Cluster(launcher="slurm", n=1, partition="main").start()
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.warns(RuntimeWarning, match="could not be cancelled"),
        pytest.raises(StartFailed, match=r"sbatch cannot be run .*\(No such file"),
    ):
        wb.Cluster(launcher="slurm", n=1).start()
    for guard in children(_GUARD):
        os.killpg(guard.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition": "gpu"}, "partition='gpu': only for launcher='slurm'"),
        ({"launcher": "slurm", "hosts": "n1:2"}, "it chooses the hosts"),
        ({"launcher": "slurm", "nodes": 0}, "nodes=0: must be a positive integer"),
        ({"launcher": "slurm", "n": 2, "nodes": 3}, "nodes=3: more than n=2"),
        ({"launcher": "slurm", "time": 5}, "time=5: must be one line of text"),
        ({"launcher": "slurm", "sbatch": "--x='"}, "Close the quotes"),
        ({"launcher": "slurm", "colour": "red"}, "colour='red': not an option"),
        ({"launcher": "slurm", "queue_timeout": "soon"}, "queue_timeout='soon': not a duration"),
    ],
)
def test_options(options, error):
    """An invalid option is reported before anything starts."""
    with pytest.raises(UsageError, match=error):
        wb.Cluster(**options)


def test_nodes_without_a_route(monkeypatch, tmp_path):
    """Nodes that this machine cannot reach over IPv4 are named; one that it reaches is enough."""
    nodes = "NodeName=far NodeAddr=2001:db8::1 NodeHostName=far\n"
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho '{nodes}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(StartFailed, match=r"no IPv4 route .*far \(2001:db8::1\).*NodeAddr"):
        slurm_commands.routes(["far"])
    near = "NodeName=near NodeAddr=127.0.0.1 NodeHostName=near"
    program.write_text(f"#!/bin/sh\necho '{nodes}{near}'\n")
    assert slurm_commands.routes(["far", "near"]) == {"far": "", "near": "127.0.0.1 0 127.0.0.1 0"}


def test_how_jobs_end():
    """While a job completes, Slurm does not show its state before; the time limit shows it."""
    text = "JobId=7 JobState={} Reason=None RunTime={} TimeLimit=00:01:00"
    ends = [("COMPLETING", "00:01:02"), ("COMPLETING", "00:00:02"), ("NODE_FAIL", "00:00:02")]
    assert [Job("7", text.format(*end)).end() for end in ends] == [
        "Slurm job 7 has reached its time limit of 00:01:00",
        "Slurm job 7 was cancelled (scancel)",
        "Slurm job 7 has lost a node",
    ]


def test_slots_of_a_job():
    """Tasks are where Slurm's cores and GPUs for them are; otherwise equally many on each node."""
    text = "JobState=RUNNING NodeList=a,b NumTasks={} CPUs/Task={} NtasksPerN:B:S:C=0:0:*:* "
    text += "Nodes=a CPU_IDs=0-2,5 Mem=0 GRES=gpu:a100:{}(IDX:0-1) Nodes=b CPU_IDs=0-7 Mem=0 GRES="
    cases = [(4, 1, 2, 0), (12, 1, 2, 0), (3, 4, 2, 0), (2, 1, 2, 1)]
    found = []
    for tasks, cores, gpus, each in cases:
        hosts, there = hosts_of(Job("7", text.format(tasks, cores, gpus)), each)
        found.append([host.slots for host in hosts])
        assert there == {"a": gpus, "b": 0}
    assert found == [[2, 2], [4, 8], [1, 2], [1, 1]]
