"""The list of clusters, and the stop of a kept one, with real clusters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from clusters import gone, with_support
from kept_clusters import kernel
from timers import InThread

import workbench as wb
from workbench.cluster.kept import _answers, stop_kept
from workbench.errors import ClusterError
from workbench.server.clusters import stop_kept_cluster
from workbench.widgets.cluster_entry import ClusterEntry

from .specification import validate_answer

LIST, ONE = "/clusters", "/clusters/{name}"


@pytest.fixture
def server(start, monkeypatch):
    """A server, and kernels that use its folder for what they write down."""
    server = start(environment=with_support())
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.folder / "runtime"))
    return server


@pytest.fixture
def listed(server, right):
    """List the clusters, and check the answer against the specification."""

    def ask():
        answer = server.ask("workbench/api/clusters", headers=right)
        validate_answer(LIST, "get", answer.status, answer.headers, answer.body)
        assert b"key" not in answer.body  # of the state file, nothing by which one could attach
        return answer.json()["clusters"]

    return ask


def test_a_kept_cluster_is_listed_and_stopped(server, right, listed):
    """Without a kernel, and all of its processes end."""
    assert listed() == []
    name, pids = kernel("")
    (one,) = listed()
    assert (one["name"], one["state"], one["ranks"], one["keep_s"]) == (name, "kept", 2, 600)
    assert one["kernel_id"] is None
    assert len(one["vms"]) == 1
    answer = server.ask(f"workbench/api/clusters/{name}", "DELETE", headers=right)
    assert answer.status == 204, answer.body
    assert gone(pids)
    assert listed() == []
    answer = server.ask(f"workbench/api/clusters/{name}", "DELETE", headers=right)
    validate_answer(ONE, "delete", answer.status, answer.headers, answer.body)
    assert answer.status == 404


def test_the_modules_of_the_servers_folder_are_not_loaded(server, monkeypatch, tmp_path):
    """The process that stops a cluster has the server's working directory."""
    mark = tmp_path / "loaded"
    (tmp_path / "psutil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    name, pids = kernel("")
    monkeypatch.chdir(tmp_path)
    asyncio.run(stop_kept_cluster(name))
    assert gone(pids)
    assert not mark.exists()


def test_a_controller_that_takes_no_connections_does_not_hold_up_the_list(tmp_path):
    """It may be stopped by a debugger: its queue is full then, and it still runs."""
    tmp_path.chmod(0o700)
    path = tmp_path / "controller.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(3):  # more than its queue takes
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        assert InThread(_answers, path).join() is True


def test_a_cluster_of_a_kernel_is_listed_and_not_stopped(server, right, listed):
    """Its kernel publishes it while it runs; a kept one is listed once."""
    entry = ClusterEntry("/run/kernel-ab12-cd34.json")
    with wb.Cluster(n=1, keep="600s") as cluster:
        entry.update(cluster)
        (one,) = listed()
        assert (one["name"], one["state"], one["ranks"]) == (cluster.name, "ready", 1)
        assert one["kernel_id"] == "ab12-cd34"
        answer = server.ask(f"workbench/api/clusters/{cluster.name}", "DELETE", headers=right)
        assert answer.status == 409
        validate_answer(ONE, "delete", answer.status, answer.headers, answer.body)
        assert "%cluster stop" in answer.json()["message"]
        assert cluster.run("1").values == {0: 1}
    entry.update(cluster)
    assert listed() == []


def test_a_kept_cluster_of_a_script_is_in_use_and_not_stopped(server, right, listed):
    """The script has no kernel: it is found by its process, until it ends."""
    with wb.Cluster(n=1, keep="600s") as cluster:
        (one,) = listed()
        assert (one["name"], one["state"], one["pid"]) == (cluster.name, "held", os.getpid())
        assert one["kernel_id"] is None
        answer = server.ask(f"workbench/api/clusters/{cluster.name}", "DELETE", headers=right)
        validate_answer(ONE, "delete", answer.status, answer.headers, answer.body)
        assert answer.status == 409
        assert f"in use by process {os.getpid()}" in answer.json()["message"]
        with pytest.raises(ClusterError, match="in use by process"):
            stop_kept(cluster.name)
        assert cluster.run("1").values == {0: 1}
    assert listed() == []
