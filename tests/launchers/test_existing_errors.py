"""Existing clusters that cannot be used: files, controllers, engines and arguments."""

import time
from functools import partial
from pathlib import Path

import ipcluster
import pytest
from clusters import children
from ipcluster import engine
from timers import FAR_S, eventually

import workbench as wb
from workbench.agent import engine_calls
from workbench.cluster.launchers import foreign_cluster
from workbench.cluster.launchers.existing import ExistingLauncher
from workbench.errors import ClusterStopped, StartFailed, UsageError
from workbench.widgets.clusters import cluster_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bare():
    """A controller on this machine, without engines."""
    with ipcluster.running() as found:
        yield found


def refused(match, start, **options):
    """The start fails with this message, and leaves nothing."""
    with pytest.raises(StartFailed, match=match):
        start(**options).start()
    assert eventually(lambda: not children("workbench.agent.tunnel"))


def test_no_engines(bare):
    """The start waits for them, and says how many there are."""
    start = partial(wb.Cluster.from_file, bare.file, start_timeout_s=0.5)
    refused("no engines are registered at .*client.json after .* start more engines", start)
    with engine(bare):
        refused("1 of 2 engines are registered", start, n=2)


def test_before_the_engines_are_known(tmp_path):
    """No number of ranks is shown, and a push is refused because the cluster is not started."""
    cluster = wb.Cluster.from_file(tmp_path / "none.json")
    assert f"{cluster.name}: stopped" in repr(cluster_table(cluster))
    with pytest.raises(ClusterStopped, match="Start one"):
        cluster.push({"x": 1}, ranks=[0])


def test_a_stop_while_the_kernel_connects(bare):
    """The connection to the controller is closed."""
    launcher = ExistingLauncher()
    launcher.release()
    with pytest.raises(StartFailed, match="interrupted"):
        launcher.allocate(wb.Cluster.from_file(bare.file).options, print)


def test_a_port_for_later_kernels():
    """The system does not give it to connections."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not low <= foreign_cluster.free_port("127.0.0.1") <= high


def test_an_engine_that_is_slow():
    """It gives up the start of an agent in time; its Python is not to blame."""
    assert engine_calls.start({}, 1e-3) is None


@pytest.mark.soak
def test_a_busy_engine(bare):
    """It is named."""
    with engine(bare) as one:
        one.apply_async(time.sleep, FAR_S)
        said = rf"engine {one.targets} of .* is busy.*: wait until its work"
        refused(said, wb.Cluster.from_file, file=bare.file, start_timeout_s=1)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("workbench.py", "raise ModuleNotFoundError(\"No module named 'workbench'\")",
         r"gradient-workbench is not installed for .*python.* there: install it .*-m pip install"),
        ("sitecustomize.py", "import platform; platform.python_version = lambda: '3.9.2'",
         r"engine \d+ of .* Python 3\.9\.2 runs there .*: start its engines with the same version"),
        ("sitecustomize.py", "import workbench._version as own; own.__version__ = '0.0.9'",
         r"engine \d+ of .* gradient-workbench 0\.0\.9 is installed there .*: install the same"),
    ],
    ids=["without workbench", "another Python", "another version"],
)  # fmt: skip
def test_an_engine_that_cannot_be_used(bare, tmp_path, name, text, match):
    """Without this package, or with another version of it or of Python."""
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
