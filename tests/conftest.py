"""What several test files share."""

import os
import signal

import pytest
from fake_machine import Machine
from timers import within

import workbench as wb


def pytest_configure():
    """Have Ctrl-C interrupt, here and in the kernels that tests start.

    A shell's background job (``make test &``) inherits an ignored SIGINT, and
    hands it on to its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def runs_folder(tmp_path_factory):
    """The tests' runs, and those of their kernels, lie in a folder of their own."""
    folder = tmp_path_factory.mktemp("runs")
    os.environ["GRADIENT_WORKBENCH_RUNS"] = str(folder)
    return folder


@pytest.fixture
def machine(tmp_path):
    """A machine of folders, for each test its own."""
    return Machine(tmp_path)


@pytest.fixture
def read_topology(tmp_path):
    """Read text as a topology file of NCCL."""

    def read(text):
        file = tmp_path / "topology.xml"
        file.write_text(text)
        return wb.Snapshot.from_nccl_topology(file)

    return read


@pytest.fixture
def ctrl_c():
    """Let SIGINT interrupt this process, whoever has started it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def cluster():
    """Two real ranks on this machine, for a whole file of tests."""
    with wb.Cluster(n=2) as running:
        yield running


@pytest.fixture(autouse=True)
def usable_cluster(request):
    """Start a shared cluster again where the test before has left it broken."""
    if "cluster" not in request.fixturenames:
        return
    shared = request.getfixturevalue("cluster")
    if isinstance(shared, wb.Cluster):
        within(20, lambda: shared.state == "ready" or has_lost_ranks(shared))
        if shared.state != "ready" or has_lost_ranks(shared):
            shared.stop()
            shared.start()


def has_lost_ranks(cluster):
    """Whether a process of the cluster is gone for good."""
    return any(info.state == "dead" for info in cluster.ranks)


@pytest.fixture
def fresh(cluster):
    """The cluster and a way to get only the timings of the cells that the test runs."""
    before = cluster.timings.to_frame()["iteration"].max()
    start = -1 if before != before else before

    def frame():
        table = cluster.timings.to_frame()
        return table[table["iteration"] > start]

    return cluster, frame
