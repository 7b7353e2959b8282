"""``launcher="existing"``, with a real controller and real engines of ipyparallel."""

import contextlib
import os
import signal
import time
from functools import partial

import ipcluster
import pytest
from clusters import BeginSink, children, gone, quiet
from ipcluster import engine
from kept_clusters import kernel
from timers import FAR_S, eventually, when
from vm_sets import vms

import workbench as wb
from workbench.errors import RanksFailed, StartFailed, UsageError
from workbench.testbed import why_not
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


FIRST_CORE = min(os.sched_getaffinity(0))


@contextlib.contextmanager
def two_engines(of):
    """Two engines, of which the first has one core; yields the first and the values of ranks."""
    first = partial(lambda command: ["taskset", "-c", str(FIRST_CORE), *command])
    cores = sorted(os.sched_getaffinity(0))
    expected = {0: (2.0, "a", "1", [FIRST_CORE], False), 1: (2.0, "b", "0", cores, False)}
    with (
        engine(of, inside=first, TAG="a", CUDA_VISIBLE_DEVICES="1", OMPI_TEST="") as one,
        engine(of, TAG="b", CUDA_VISIBLE_DEVICES="0"),
    ):
        yield one, expected


def test_ranks_take_the_place_of_engines(bare, monkeypatch):
    """They have their variables, cores and GPUs, also after a restart; the engines are free.

    An engine that is busy is left out if the others are enough.
    """
    monkeypatch.setenv("IPYTHONDIR", str(bare.file.parents[2]))
    with two_engines(bare) as (one, expected), engine(bare) as busy:
        before = {process.pid for process in bare.engines}
        busy.apply_async(time.sleep, FAR_S)
        with wb.Cluster.from_profile("test", 2, start_timeout_s=FAR_S) as cluster:
            assert cluster.n == 2
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
            agents = [agent.hello.pid for agent in cluster.agents]
        assert gone(agents)
        assert eventually(lambda: not children("workbench.agent.tunnel"))
        assert one.apply_sync(os.getpid) in before


@pytest.mark.soak
def test_connections_and_engines_are_lost(bare):
    """The connection is made again; both ranks take what the only engine that is left has."""
    with two_engines(bare) as (one, expected):
        with wb.Cluster.from_file(bare.file, 2, start_timeout_s=FAR_S) as cluster:
            assert quiet(cluster, GIVEN).values == expected
            for tunnel in children("workbench.agent.tunnel"):
                tunnel.kill()
            assert quiet(cluster, GIVEN).values == expected
            assert eventually(lambda: not any(agent.reconnecting for agent in cluster.agents))
            agents = [agent.hello.pid for agent in cluster.agents]
            bare.engines[-1].kill()
            assert eventually(lambda: len(one.client.ids) == 1)
            os.kill(agents[0], signal.SIGKILL)
            assert eventually(lambda: cluster.state == "failed")
            cluster.restart()
            assert quiet(cluster, GIVEN).values == {0: expected[0], 1: expected[0]}
            agents.append(cluster.agents[0].hello.pid)
        assert gone(agents)
        assert eventually(lambda: not children("workbench.agent.tunnel"))


BEFORE_A_CLOCK_STEP = """
import sys
if "ipyparallel.engine" in sys.orig_argv:
    import psutil._pslinux
    psutil._pslinux.boot_time = lambda: 0.0
    psutil._pslinux.BOOT_TIME = 0.0
"""


@pytest.mark.soak
def test_the_next_kernel_attaches(bare, tmp_path, monkeypatch):
    """A kept cluster outlives its kernel, also with engines from before the clock was set."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(BEFORE_A_CLOCK_STEP)
    stepped = {"PYTHONPATH": str(tmp_path)}
    with engine(bare, **stepped), engine(bare, **stepped):
        given = f"launcher='existing', connection_file={str(bare.file)!r}, keep='600s'"
        name, pids = kernel("", given)
        cluster = wb.Cluster.attach(name)
        try:
            assert quiet(cluster, "kept").values == {0: 0, 1: 10}
            same = wb.Cluster.from_file(bare.file)
            assert same.options.identity == cluster.options.identity
            assert "secret" not in repr(cluster.options)
            cluster.restart(ranks=[1])
            assert quiet(cluster, "'kept' in globals()").values == {0: True, 1: False}
        finally:
            cluster.stop()
        assert gone(pids)


@pytest.mark.soak
def test_a_stopped_cluster_starts_with_all_engines(bare):
    """Without a number of ranks, an engine that has come in the meantime gets one as well."""
    with engine(bare), engine(bare):
        with wb.Cluster.from_file(bare.file) as cluster:
            assert cluster.n == 2
        with engine(bare):
            try:
                assert cluster.start().n == 3
            finally:
                cluster.stop()


@on_vms
@pytest.mark.soak
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
