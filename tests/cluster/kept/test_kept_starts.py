"""Starts of kept clusters that fail, and processes of them that are lost."""

import os
import re
import subprocess

import psutil
import pytest
from clusters import gone, quiet
from kept_clusters import controllers, kernel
from timers import eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import ClusterStopped, NoCluster, StartFailed
from workbench.testbed import vms, why_not

DIES = """
import os, sys
if "workbench.agent.program" in sys.orig_argv:
    os.register_at_fork(after_in_child={how})
"""


def failure_of(**options):
    """Return the error of a start that fails, which is the same with `keep`; no process is left."""
    texts = []
    for keep in (None, 600):
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
    eventually(lambda: cluster.ranks[0].state == "dead")
    quiet(cluster, "1")


def nothing_is_left(runtime):
    with pytest.raises(NoCluster):
        wb.Cluster.attach()
    assert not list(runtime.glob("workbench-*"))


def test_a_kept_start_names_an_unknown_host(runtime):
    """An ssh that exits at once is noticed: an unknown host is reported as without `keep`."""
    host = "no-such-host.invalid"
    assert f"{host}: its name is not known here" in failure_of(hosts=host)
    nothing_is_left(runtime)


def test_a_kept_start_without_ssh(runtime, monkeypatch):
    """A machine without ssh is reported as without `keep`."""
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert failure_of(hosts="vm1").startswith("there is no ssh on this machine: install")
    nothing_is_left(runtime)


@pytest.mark.soak
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
    assert says in failure_of(n=1)
    nothing_is_left(runtime)


@pytest.mark.soak
def test_a_kept_agent_that_is_killed(runtime, attach):
    """The kernel that started it names it with its signal, and the next one reports it as gone."""
    cluster = wb.Cluster(n=1, keep=600).start()
    pid = cluster.ranks[0].pid
    psutil.Process(pid).parent().kill()
    with pytest.raises(ClusterStopped, match="agent of this machine was killed by SIGKILL"):
        waited_for_loss(cluster)
    cluster.stop()
    assert gone([pid])
    nothing_is_left(runtime)
    _, pids = kernel("", "n=1, keep=600")
    cluster = attach()
    psutil.Process(pids[0]).parent().kill()
    with pytest.raises(ClusterStopped, match="the agent of this machine is gone"):
        waited_for_loss(cluster)
    cluster.stop()
    assert gone(pids)
    nothing_is_left(runtime)


@pytest.mark.soak
def test_a_kept_controller_that_is_killed(runtime, attach):
    """The kernel that has attached names it as gone; a kernel that comes later finds no cluster."""
    _, pids = kernel("", "n=1, keep=600")
    cluster = attach()
    main = min(controllers(runtime), key=lambda process: process.create_time())
    main.kill()
    with pytest.raises(ClusterStopped, match="the ipyparallel controller is gone"):
        waited_for_loss(cluster)
    cluster.stop()
    assert gone(pids)
    assert not controllers(runtime)
    nothing_is_left(runtime)
    _, pids = kernel("", "n=1, keep=2")
    kept = [process.pid for process in controllers(runtime)]
    main = min(controllers(runtime), key=lambda process: process.create_time())
    main.kill()
    assert gone(kept)
    nothing_is_left(runtime)
    assert gone(pids)


@pytest.mark.soak
def test_a_folder_with_a_long_name(runtime, attach, monkeypatch):
    """A socket's name has a maximum length, but the path of the runtime folder may be longer."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime / ("long" * 25)))
    name, _ = kernel("", "n=1, keep='600s'")
    assert attach(name).run("rank", sink=TextSink()).values == {0: 0}
    with wb.Cluster(n=1) as cluster:  # one that no other kernel has to find
        assert cluster.state == "ready"


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_kept_start_on_vms_names_its_cause(runtime, tmp_path):
    """A refused key, and a missing Python, are reported as without `keep`."""
    with vms(1) as machines:
        other = tmp_path / "other"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True
        )
        config = tmp_path / "config"
        config.write_text(
            re.sub(r"IdentityFile .*", f"IdentityFile {other}", machines.ssh_config.read_text())
        )
        assert "vm1: it refused the key" in failure_of(hosts="vm1", ssh_config=config)
        hosts = [{"name": "vm1", "python": "/opt/none/bin/python"}]
        assert "no such Python" in failure_of(hosts=hosts, ssh_config=machines.ssh_config)
    nothing_is_left(runtime)
