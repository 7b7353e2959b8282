"""`gradient-workbench-rank`: what a VM installs to run ranks for a notebook elsewhere."""

import os
import subprocess

import pytest
from clusters import quiet, training
from environments import RANK, build_wheel, environment_of
from timers import PROCESS_S
from vm_sets import vms

import workbench as wb
from workbench.testbed import why_not

OF_THE_NOTEBOOK = ["jupyterlab", "jupyter_server", "pandas", "plotly", "ipywidgets", "anywidget"]
IMPORTS = "import sys; from importlib.util import find_spec\n"
LOADED = f"[name for name in {OF_THE_NOTEBOOK} if name in sys.modules]"
INSTALLED = f"[name for name in {OF_THE_NOTEBOOK} if find_spec(name)]"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ALL_MODULES = """
import importlib, pkgutil, sys, workbench

for package in sys.argv[1:]:
    folder = importlib.import_module(f"workbench.{package}")
    for module in pkgutil.walk_packages(folder.__path__, folder.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with this distribution, its dependencies and Horovod."""
    wheel = build_wheel(RANK, tmp_path_factory.mktemp("wheel"))
    folder = tmp_path_factory.mktemp("environment")
    return environment_of(wheel, folder, besides=["horovod"])


def run(python, *arguments):
    """Return the output of a command of the environment, away from this tree."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments], cwd="/", env=clean, capture_output=True, text=True, timeout=PROCESS_S,
        check=True,
    ).stdout  # fmt: skip


@pytest.mark.soak
def test_the_packages_of_the_notebook_are_missing(python):
    """Nothing that a VM installs brings JupyterLab, pandas or plotly."""
    assert run(python, "-c", f"{IMPORTS}print({INSTALLED})") == "[]\n"


@pytest.mark.soak
def test_agent_and_rank_are_complete(python):
    """Each module of what runs on a VM can be imported there."""
    packages = ["agent", "rank", "wire", "resources", "doctor", "horovod_build"]
    names = run(python, "-c", ALL_MODULES, *packages).split()
    assert {"workbench.agent.program", "workbench.rank.session"} <= set(names)


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["resources"], ["resources", "--json"], ["build-horovod", "--check"]],
    ids=" ".join,
)
def test_the_command_line_works(python, arguments):
    """On the VM: what it has, and its Horovod."""
    workbench = python.parent / "workbench"
    assert run(workbench, *arguments)


@pytest.mark.soak
def test_a_notebook_trains_on_vms_that_have_nothing_else(python, tmp_path):
    """The kernel has everything, its ranks only the distribution: cells, values and timings."""
    if (reason := why_not()) is not None:
        pytest.skip(str(reason))
    hosts = tmp_path / "hosts"
    with vms(2) as machines:
        hosts.write_text("".join(f"{name} slots=1 python={python}\n" for name in machines.names))
        with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as cluster:
            quiet(cluster, training(5))
            found = quiet(cluster, f"{IMPORTS}{INSTALLED}, sys.prefix").values
            assert quiet(cluster, "[rank] * 2").values == {0: [0, 0], 1: [1, 1]}
            assert len(cluster.timings.to_frame()) == 10
    assert found == {rank: ([], str(python.parents[1])) for rank in range(2)}


def test_a_rank_loads_nothing_of_the_notebook(cluster):
    """Nor does one next to the notebook, where all of it is installed."""
    quiet(cluster, training(5))
    assert quiet(cluster, IMPORTS + LOADED).values == {0: [], 1: []}
