"""``launcher="existing"``, with a real controller and real engines of ipyparallel."""

import contextlib
import os
import signal
from functools import partial

import ipcluster
import ipyparallel
import pytest
from clusters import BeginSink, children, gone, quiet
from kept_clusters import kernel
from timers import FAR_S, eventually, when

import workbench as wb
from workbench.cluster.launchers import foreign_cluster
from workbench.errors import RanksFailed, StartFailed, UsageError
from workbench.testbed import vms, why_not
from workbench.widgets.clusters import cluster_table

pytestmark = pytest.mark.slow
on_vms = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
GIVEN = """
import os, torch
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
given = os.environ["TAG"], os.getenv("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0))
(total, *given, "OMPI_TEST" in os.environ)
"""
HANG = BeginSink.PRINT + "import torch\nwhile True: hvd.allreduce(torch.ones(1))\n"


@pytest.fixture(scope="module")
def bare():
    """A controller on this machine, without engines."""
    with ipcluster.running() as found:
        yield found


@contextlib.contextmanager
def engine(of, *, inside=lambda command: command, **environment):
    """An engine that is registered."""
    with contextlib.closing(ipyparallel.Client(str(of.file))) as client:
        before = set(client.ids)
        process = of.add(inside, **environment)
        assert eventually(lambda: set(client.ids) - before)
        (number,) = set(client.ids) - before
        try:
            yield client[number]
        finally:
            process.kill()
            process.wait()
        assert eventually(lambda: number not in client.ids)


def refused(match, start, **options):
    """The start fails with this message, and leaves nothing."""
    with pytest.raises(StartFailed, match=match):
        start(**options).start()
    assert not children("workbench.agent.tunnel")


def test_ranks_take_the_place_of_engines(bare, monkeypatch):
    """They have their variables, cores and GPUs, also after a restart; the engines are free."""
    monkeypatch.setenv("IPYTHONDIR", str(bare.file.parents[2]))
    cores = sorted(os.sched_getaffinity(0))
    first = partial(lambda command: ["taskset", "-c", str(cores[0]), *command])
    with (
        engine(bare, inside=first, TAG="a", CUDA_VISIBLE_DEVICES="1", OMPI_TEST="") as one,
        engine(bare, TAG="b", CUDA_VISIBLE_DEVICES="0"),
    ):
        before = {process.pid for process in bare.engines}
        with wb.Cluster.from_profile("test", start_timeout_s=FAR_S) as cluster:
            assert cluster.n == 2
            expected = {0: (2.0, "a", "1", cores[:1], False), 1: (2.0, "b", "0", cores, False)}
            assert quiet(cluster, GIVEN).values == expected
            assert "ipyparallel's engines of profile 'test'" in repr(cluster_table(cluster))
            # a rank's cell and an engine's run at the same time
            sink = BeginSink()
            running = cluster.run_in_background(HANG, sink=sink)
            assert eventually(lambda: sink.begun(2))
            assert one.apply_sync(os.getpid) in before
            cluster.interrupt()
            assert running.exception() is not None
            os.kill(cluster.ranks[0].pid, signal.SIGKILL)
            assert eventually(lambda: cluster.state == "failed")
            cluster.restart()
            assert quiet(cluster, GIVEN).values == expected
            with pytest.raises(UsageError, match="slots"):
                cluster.resize(3)
            # the connection is made again
            for tunnel in children("workbench.agent.tunnel"):
                tunnel.kill()
            assert quiet(cluster, GIVEN).values == expected
            assert eventually(lambda: not any(agent.reconnecting for agent in cluster.agents))
            agents = [agent.hello.pid for agent in cluster.agents]
        assert gone(agents)
        assert not children("workbench.agent.tunnel")
        assert one.apply_sync(os.getpid) in before


def test_the_next_kernel_attaches(bare, tmp_path, monkeypatch):
    """A kept cluster outlives its kernel."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    with engine(bare), engine(bare):
        given = f"launcher='existing', connection_file={str(bare.file)!r}, keep='600s'"
        name, pids = kernel("", given)
        cluster = wb.Cluster.attach(name)
        try:
            assert quiet(cluster, "kept").values == {0: 0, 1: 10}
            cluster.restart(ranks=[1])
            assert quiet(cluster, "'kept' in globals()").values == {0: True, 1: False}
        finally:
            cluster.stop()
        assert gone(pids)


@on_vms
def test_engines_on_vms_end():
    """Their VM is lost, and the error names them; with other engines there it is used again."""
    with vms(2) as machines, ipcluster.running(machines.kernel_address) as foreign:
        first = partial(machines.inside, "vm1")
        second = partial(machines.inside, "vm2")
        with engine(foreign, inside=first), engine(foreign, inside=first):
            lost = foreign.add(second)
            with wb.Cluster.from_file(foreign.file, 3, start_timeout_s=FAR_S) as cluster:
                assert [info.vm for info in cluster.ranks] == ["vm1", "vm1", "vm2"]
                quiet(cluster, "kept = rank")
                sink = BeginSink()
                when(lambda: sink.begun(3), lost.kill)
                said = "ipyparallel's engine 2 on vm2 has ended"
                with pytest.raises(RanksFailed, match=said) as caught:
                    cluster.run(HANG, sink=sink)
                assert list(caught.value.errors) == [2]
                lost.wait()
                with pytest.raises(StartFailed, match=f"{said}, and no others are registered"):
                    cluster.restart()
                with engine(foreign, inside=second):
                    cluster.restart()
                    found = quiet(cluster, "globals().get('kept')").values
                    assert found == {0: 0, 1: 1, 2: None}
                    # no packet arrives from there any more
                    machines.cut("vm2")
                    assert eventually(lambda: cluster.state == "failed")
                    assert "vm2" in cluster.message


def test_no_engines(bare):
    """The start waits for them, and says how many there are."""
    start = partial(wb.Cluster.from_file, bare.file, start_timeout_s=0.5)
    refused("no engines are registered at .*client.json after .* start engines", start)
    with engine(bare):
        refused("1 of 2 engines are registered", start, n=2)


def test_a_busy_engine(bare):
    """It is named, and does not run the call later; the others are used if they are enough."""
    with engine(bare, TAG="a") as one, engine(bare, TAG="b") as two:
        one.apply_async(os.system, f"while kill -0 {os.getpid()}; do sleep 0.1; done")
        start = partial(wb.Cluster.from_file, bare.file)
        said = rf"engine {one.targets} of .* is busy.*: wait until its work"
        refused(said, start, start_timeout_s=1)
        with start(n=1, start_timeout_s=FAR_S) as cluster:
            assert quiet(cluster, "import os; os.environ['TAG']").values == {0: "b"}
            assert two.apply_sync(int) == 0


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("workbench.py", "raise ModuleNotFoundError(\"No module named 'workbench'\")",
         r"gradient-workbench is not installed for .*python.* there: install it .*-m pip install"),
        ("sitecustomize.py", "import platform; platform.python_version = lambda: '3.9.2'",
         r"engine \d+ of .* Python 3\.9\.2 runs there .*: start its engines with the same version"),
    ],
    ids=["without workbench", "another Python"],
)  # fmt: skip
def test_an_engine_that_cannot_be_used(bare, tmp_path, name, text, match):
    """Without this package, or with another version of Python."""
    (tmp_path / name).write_text(text)
    with engine(bare, PYTHONPATH=str(tmp_path)):
        refused(match, wb.Cluster.from_file, file=bare.file)


def test_a_controller_that_does_not_answer(bare, tmp_path, monkeypatch):
    """Its file is there; nothing listens at its address."""
    monkeypatch.setattr(foreign_cluster, "_CONNECT_S", 0.3)
    file = tmp_path / "ipcontroller-client.json"
    file.write_text(bare.file.read_text().replace("127.0.0.1", "127.0.0.77"))
    refused("has not answered .*: check that it runs", wb.Cluster.from_file, file=file)


def test_files_that_cannot_be_used(tmp_path, monkeypatch):
    """A missing profile or file, one without a controller, and a file of something else."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    refused("profile='x': there is no such profile", wb.Cluster.from_profile, profile="x")
    security = tmp_path / "profile_x" / "security"
    security.mkdir(parents=True)
    said = "no controller has written .*: start its cluster with `ipcluster start --profile=x`"
    refused(said, wb.Cluster.from_profile, profile="x")
    for name in "ab":
        (security / f"ipcontroller-{name}-client.json").write_text('{"key": 1}')
    refused("several clusters: .*: name one", wb.Cluster.from_profile, profile="x")
    refused("there is no such file", wb.Cluster.from_file, file=tmp_path / "none.json")
    file = next(security.iterdir())
    refused("is not a connection file of ipyparallel", wb.Cluster.from_file, file=file)
    file.write_text("{")
    refused("is not a connection file of ipyparallel", wb.Cluster.from_file, file=file)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"profile": "x", "hosts": "vm1"}, "launcher='existing' with hosts.* Leave hosts out[.]$"),
        ({"profile": "x", "connection_file": "y"}, "name two clusters"),
        ({"profile": "x", "launcher": "slurm"}, "only for launcher='existing'"),
        ({"profile": "x", "partition": "y"}, "only for launcher='slurm'"),
        ({"profile": 1}, "must be one line of text"),
    ],
)
def test_arguments_that_are_refused(options, match):
    """They contradict each other, or are no text."""
    with pytest.raises(UsageError, match=match):
        wb.Cluster(**options)
