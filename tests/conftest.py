"""Fixtures of several test files."""

import os
import signal
import sys
import time
from pathlib import Path

import clean_ranks
import pytest
import slurm
import vm_sets
from fake_machine import Machine
from leftovers import END_S, Leftovers, waited_for_threads
from slow_tests import is_slow
from timers import FAR_S, LIMITS_FACTOR, InThread, eventually

import workbench as wb
from workbench.cluster import warm
from workbench.cluster.backends import horovod
from workbench.cluster.evidence import recorder

USERS = pytest.StashKey[set]()  # the files whose tests share a cluster
SHARED = pytest.StashKey[wb.Cluster]()  # that cluster
BROWSER = Path(__file__).parent / "browser"  # its tests share a browser, a server and trainings
LEFTOVERS = pytest.StashKey[Leftovers]()
MARKERS = pytest.StashKey[dict[str, set[str]]]()  # of all tests, also of deselected ones


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


def runs_tests(config):
    """Return whether this process runs tests itself, rather than its workers of pytest-xdist."""
    return hasattr(config, "workerinput") or not config.getoption("numprocesses", None)


def pytest_sessionstart(session):
    """Begin to observe what tests leave behind."""
    if runs_tests(session.config) and not session.config.option.collectonly:
        session.stash[LEFTOVERS] = Leftovers()


def pytest_sessionfinish(session):
    """Remove what was left; `nothing_is_left` has reported it."""
    if LEFTOVERS in session.stash:
        session.stash[LEFTOVERS].close()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """End this process although threads still run that are no daemons: it would wait for them."""
    if runs_tests(config) and waited_for_threads():
        print("still running:", *waited_for_threads(), file=sys.stderr, flush=True)
        InThread(lambda: (time.sleep(END_S), os._exit(1)))


def note(config, event, nodeid):
    """Write an event to this process's log, which `.ci/limit` prints when a limit is reached."""
    folder = os.environ.get("TEST_RUN_FOLDER")
    if folder and runs_tests(config):
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with Path(folder, f"{name}-{os.getpid()}.tests").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {event} {nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Log each test's begin and end, and note what it has left behind."""
    item.user_properties.append(("test", item.nodeid))  # for `.ci/python-tests`
    note(item.config, "begin", item.nodeid)
    result = yield
    item.session.stash[LEFTOVERS].observe(item.nodeid)
    note(item.config, "end", item.nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Log the failure of a test at once: pytest shows it only when all tests have ended."""
    report = yield
    if report.failed:
        note(item.config, f"{report.when} failed", f"{item.nodeid}\n{report.longreprtext}")
    return report


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(request):
    """Fail, at the teardown of the session's last test, if any test has left something behind."""
    yield
    remaining = request.session.stash[LEFTOVERS].remaining()
    assert not remaining, "tests have left behind:\n" + "\n".join(remaining)


@pytest.fixture(scope="session", autouse=True)
def warm_process(nothing_is_left):
    """End the warm process, which serves all tests of this process."""
    yield
    warm.end()


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
def kept_vms(nothing_is_left):
    """End the VMs and the Slurm that tests of this process have used in turn."""
    yield
    vm_sets.end_idle_vms()
    slurm.end_idle_slurm()


@pytest.fixture(scope="session", autouse=True)
def patient_horovod():
    """Have no wait of Horovod's end for its own time limit, 30 s: what is freed, we have freed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(horovod, "_GLOO_TIMEOUT_S", 600)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_product():
    """Give the product time for what it does not wait for long: a busy machine is slow.

    An error waits for the first version of its evidence bundle, and a start for the warm process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_FIRST_S", FAR_S)
        patch.setattr(warm, "_ANSWER_S", FAR_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def frugal_ranks(request):
    """Have ranks use less of the cores, in a session without tests that compare times.

    Horovod's threads negotiate 200 times a second: with 1,000, idle ranks take 5 % of a core. And
    ranks have one thread, however many there are: else a start of another number of ranks could
    not be forked from the warm process.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker("timing") for item in request.session.items):
            for name, value in (("HOROVOD_CYCLE_TIME", "5"), ("OMP_NUM_THREADS", "1")):
                patch.setenv(name, os.environ.get(name, value))
        yield


@pytest.fixture
def usual_threads(monkeypatch):
    """Have new ranks use the number of threads that is chosen for them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


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


@pytest.fixture(scope="session", autouse=True)
def kernels_end(nothing_is_left):
    """End the kernels that tests of this process have shared."""
    yield
    for name in ("run_notebook", "forked_kernels"):
        if name in sys.modules:
            sys.modules[name].end_all()


@pytest.fixture(scope="session")
def shared_cluster(request):
    """Two real ranks on this machine, for all tests of this process; see `cluster`."""
    shared = request.session.stash[SHARED] = wb.Cluster(n=2)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def cluster(shared_cluster):
    """Two real ranks on this machine, in the state of new ones: see `clean`.

    Timings continue from file to file: `fresh` has only those of its test.
    """
    clean(shared_cluster)
    return shared_cluster


@pytest.fixture
def clean_cluster(cluster):
    """The same for a test that needs ranks without what earlier tests of its file have left."""
    clean(cluster)
    return cluster


@pytest.fixture
def new_ranks(cluster):
    """The same with ranks that have just started, for a test that needs new processes."""
    renew(cluster)
    return cluster


def clean(cluster):
    """Clear the ranks of what earlier tests have left; renew them where that does not suffice.

    The reason is printed, and shown with the next test that fails.
    """
    cluster.recording = True
    cluster.fabric = None
    if cluster.state != "ready" or has_lost_ranks(cluster) or cluster.n != cluster.options.n:
        renew(cluster)
    elif differences := clean_ranks.clear(cluster):
        print("The shared ranks are replaced, because earlier tests have changed them:")
        print(*differences, sep="\n")
        renew(cluster)


def renew(cluster):
    """Put new ranks in the place of those that are there, or start the cluster again."""
    cluster.recording = True
    cluster.fabric = None
    states = {info.state for info in cluster.ranks}
    same_size = cluster.n == cluster.options.n
    if same_size and (cluster.state == "ready" or states == {"ready", "dead"}):
        cluster.restart(ranks=range(cluster.n))
    else:
        cluster.stop()
        cluster.start()
    clean_ranks.remember(cluster)


def pytest_collection_modifyitems(session, items):
    """Put browser tests first, as they take longest, then the users of the cluster; mark tests."""
    users = {item.path for item in items if "shared_cluster" in item.fixturenames}
    session.stash[USERS] = users
    items.sort(key=lambda item: (BROWSER not in item.path.parents, item.path not in users))
    for item in items:
        if is_slow(item, Path(__file__).parent):
            item.add_marker("slow")
        limit = item.get_closest_marker("timeout")
        if limit is not None and LIMITS_FACTOR != 1:
            item.add_marker(pytest.mark.timeout(limit.args[0] * LIMITS_FACTOR, **limit.kwargs))
    names = {item.nodeid: {marker.name for marker in item.iter_markers()} for item in items}
    session.stash[MARKERS] = names


@pytest.fixture
def collected_markers(request):
    """The names of the markers of each collected test, whether or not it is selected."""
    return request.session.stash[MARKERS]


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
        clean_ranks.remember(shared)  # where the test before has replaced them


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
