"""Horovod's MPI controller: Horovod is built with MPI in an environment of its own, once.

The build takes minutes where the cache has no such wheel, and needs the headers of Open MPI.
Each test is a kernel of that environment.
"""

import json
import os
import subprocess
import textwrap

import pytest
from horovod_environments import environment_python
from mpi import mpi_leftovers, needs_mpi
from timers import BUILD_S, PROCESS_S, eventually

from workbench.horovod_build.operations import find_mpi

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.slow,
    needs_mpi,
    pytest.mark.skipif(
        find_mpi().version is None,
        reason="there are no headers of Open MPI here: apt-get install libopenmpi-dev",
    ),
]
KERNEL = """
import json, os, signal, textwrap, time
import torch
import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import UsageError
from workbench.widgets.clusters import cluster_table
SUM = "import torch; hvd.allreduce(torch.ones(1), op=hvd.Sum).item()"
def values(cluster, source):
    return list(cluster.run(textwrap.dedent(source), sink=TextSink()).values.values())
def error(call):
    try: call()
    except Exception as found: return f"{{type(found).__name__}}: {{found}}"
found = {{}}
with wb.Cluster(launcher="mpi", n=3{options}) as cluster:
{body}
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter whose Horovod has MPI."""
    found, _ = environment_python(tmp_path_factory.mktemp("mpi") / "env")
    command = [found, "-m", "workbench", "build-horovod", "--with", "mpi"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture
def kernel(python):
    """Run a kernel with a cluster of three ranks, and return what it has found."""

    def run(body, options="", **environment):
        before = mpi_leftovers()
        code = KERNEL.format(body=textwrap.indent(textwrap.dedent(body), "    "), options=options)
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, cwd="/", timeout=PROCESS_S,
            check=False, env=os.environ | environment,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        assert lines, done.stderr
        assert eventually(lambda: mpi_leftovers() <= before)
        return json.loads(lines[0].removeprefix("FOUND "))

    return run


def test_the_ring_is_formed_by_mpi(kernel):
    """Cells, errors, a new ring and the times of collectives are as over Gloo."""
    found = kernel("""
        source = SUM + "; (hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.rank(), hvd.local_rank())"
        found["enabled"] = values(cluster, source)
        found["status"] = repr(cluster_table(cluster))
        found["error"] = error(lambda: values(
            cluster, "if rank == 1: raise ValueError('planted')\\n" + SUM))
        found["after"] = values(cluster, SUM)
        found["again"] = values(cluster, "hvd.shutdown(); hvd.init(); " + SUM)
        values(cluster, '''
        model = torch.nn.Linear(8, 8)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
        for _ in range(4):
            optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
        ''')
        times = cluster.timings.collectives()
        found["libraries"] = sorted(set(times[times.by == "optimizer"].library))
        found["transferred"] = bool((times[times.iteration > 0].service_us > 0).all())
    """)
    assert found["enabled"] == [[True, False, rank, rank] for rank in range(3)]
    assert "MPI connects Horovod's ranks" in found["status"]
    assert "planted" in found["error"]
    assert "[ranks 0,2] freed from a collective" in found["error"]
    assert found["after"] == found["again"] == [3.0, 3.0, 3.0]
    assert found["libraries"] == ["MPI_ALLREDUCE"]
    assert found["transferred"]


@pytest.mark.parametrize("record", [True, False])
def test_a_rank_is_lost(kernel, record):
    """The others are freed; only all ranks together can be replaced, which the errors say."""
    found = kernel(
        """
        found["one"] = error(lambda: cluster.restart([1]))
        found["fewer"] = error(lambda: cluster.resize(2))
        endless = '''
        import os, signal
        for number in range(10**9):
            if rank == 1 and number == 50: os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(torch.ones(3))
        '''
        values(cluster, "import torch")
        found["error"] = error(lambda: values(cluster, endless))
        found["state"] = [cluster.state, cluster.message]
        cluster.restart()
        found["after"] = values(cluster, SUM)
        found["controller"] = cluster.description
        """,
        options=f", record={record}",
    )
    for name in ("one", "fewer"):
        assert "MPI connects the ranks" in found[name]
        assert "Replace all with %cluster restart" in found[name]
    assert "RankLost: its process" in found["error"]
    assert found["state"][0] == "failed"
    assert "Replace all ranks with %cluster restart: MPI connects them" in found["state"][1]
    assert found["after"] == [3.0, 3.0, 3.0]
    assert found["controller"] == "MPI connects Horovod's ranks."


def test_the_user_chooses_gloo(kernel):
    """Horovod's own variable keeps Gloo, with which a rank can be replaced alone."""
    found = kernel(
        """
        found["enabled"] = values(cluster, "(hvd.mpi_enabled(), hvd.gloo_enabled())")
        os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        while cluster.state != "failed": time.sleep(0.05)
        cluster.restart()
        found["after"] = values(cluster, SUM)
        """,
        HOROVOD_CONTROLLER="gloo",
    )
    assert found["enabled"] == [[False, True]] * 3
    assert found["after"] == [3.0, 3.0, 3.0]
