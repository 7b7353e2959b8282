"""Fixtures of several test files."""

import os
import signal
from pathlib import Path

import pytest
from fake_machine import Machine
from timers import LIMITS_FACTOR, eventually

import workbench as wb
from workbench.cluster.backends import horovod

USERS = pytest.StashKey[set]()  # the files whose tests share a cluster
SHARED = pytest.StashKey[wb.Cluster]()  # that cluster
BROWSER = Path(__file__).parent / "browser"  # its tests share a browser, a server and trainings


def pytest_configure(config):
    """Make Ctrl-C interrupt, here and in the kernels that tests start; scale the time limits.

    A shell's background job (``make test &``) inherits an ignored SIGINT, and
    hands it on to its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("timeout", None) is None:
        config.option.timeout = float(config.getini("timeout")) * LIMITS_FACTOR


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Send all tests of a file to one process, and all browser tests to one too.

    Files start in the order of the collection: the browser tests are first, since they take
    longest. Marks of ``--dist loadgroup`` would do the same, but they change the names of tests.
    """
    if config.getvalue("dist") not in {"loadfile", "loadgroup"}:
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    browser = BROWSER.relative_to(config.rootpath).as_posix()

    class OneBrowser(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return browser if nodeid.startswith(f"{browser}/") else super()._split_scope(nodeid)

    return OneBrowser(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Fail a test whose own interrupt comes too late.

    In a process of pytest-xdist it would end the whole run.
    """
    try:
        return (yield)
    except KeyboardInterrupt as error:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            raise
        raise AssertionError("an interrupt came after what it was to interrupt") from error


@pytest.fixture(scope="session", autouse=True)
def runs_folder(tmp_path_factory):
    """The tests' runs, and those of their kernels, lie in a folder of their own."""
    folder = tmp_path_factory.mktemp("runs")
    os.environ["GRADIENT_WORKBENCH_RUNS"] = str(folder)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # of `workbench use`
    return folder


@pytest.fixture(scope="session", autouse=True)
def patient_horovod():
    """Have no wait of Horovod's end for its own time limit, 30 s: what is freed, we have freed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(horovod, "_GLOO_TIMEOUT_S", 600)
        yield


@pytest.fixture(scope="session", autouse=True)
def long_cycles(request):
    """Have Horovod's ranks negotiate 200 times a second: with 1,000, idle ones take 5 % of a core.

    A session with tests that compare times keeps Horovod's default for all.
    """
    with pytest.MonkeyPatch.context() as patch:
        timed = any(item.get_closest_marker("timing") for item in request.session.items)
        if not timed and "HOROVOD_CYCLE_TIME" not in os.environ:
            patch.setenv("HOROVOD_CYCLE_TIME", "5")
        yield


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


@pytest.fixture(scope="session")
def shared_cluster(request):
    """Two real ranks on this machine, for all tests of this process; see `cluster`."""
    shared = request.session.stash[SHARED] = wb.Cluster(n=2)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def cluster(shared_cluster):
    """Two real ranks on this machine, without variables of the tests of other files.

    Timings continue from file to file: `fresh` has only those of its test.
    """
    renew(shared_cluster)
    return shared_cluster


@pytest.fixture
def new_ranks(cluster):
    """The same with ranks that have just started, for a test that needs or breaks them."""
    renew(cluster)
    return cluster


def renew(cluster):
    """Put new ranks in the place of those that are there, or start the cluster again."""
    cluster.fabric = None
    states = {info.state for info in cluster.ranks}
    if cluster.state == "ready" or states == {"ready", "dead"}:
        cluster.restart(ranks=range(cluster.n))
    else:
        cluster.stop()
        cluster.start()


def pytest_collection_modifyitems(session, items):
    """Put browser tests first, as they take longest, then the users of the cluster; mark tests."""
    users = {item.path for item in items if "shared_cluster" in item.fixturenames}
    session.stash[USERS] = users
    items.sort(key=lambda item: (BROWSER not in item.path.parents, item.path not in users))
    for item in items:
        if "shared_cluster" in item.fixturenames:
            item.add_marker("slow")
        limit = item.get_closest_marker("timeout")
        if limit is not None and LIMITS_FACTOR != 1:
            item.add_marker(pytest.mark.timeout(limit.args[0] * LIMITS_FACTOR, **limit.kwargs))


@pytest.fixture(scope="module", autouse=True)
def no_idle_cluster(request):
    """Stop the shared cluster before a file that does not use it."""
    stash = request.session.stash
    if SHARED in stash and request.path not in stash[USERS]:
        stash[SHARED].stop()


@pytest.fixture(autouse=True)
def usable_cluster(request):
    """Renew the shared cluster where the test before has left it broken."""
    # elsewhere `no_idle_cluster` has added the shared one to the names, and `cluster` is another
    users = request.session.stash[USERS]
    if request.path in users and "shared_cluster" in request.fixturenames:
        shared = request.getfixturevalue("cluster")
        eventually(lambda: shared.state == "ready" or has_lost_ranks(shared))
        if shared.state != "ready" or has_lost_ranks(shared):
            renew(shared)


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
