"""A second Ctrl-C while a start, a stop or an attach that was interrupted is ended."""

import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from clusters import children, quiet, with_support
from kept_clusters import IN_A_CELL, KERNEL
from levels import in_soak
from test_stop_button import STUBBORN, end  # noqa: F401 - a fixture
from timers import PROCESS_S, InThread, eventually, later

import workbench as wb
from workbench.errors import ClusterError, StartFailed


def press():
    """Press Ctrl-C."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def press_in(cluster, state):
    """Press Ctrl-C whenever the cluster gets into a state."""
    cluster.subscribe(lambda: press() if cluster.state == state else None)


@pytest.mark.parametrize("state", ["stopping", in_soak("stopped")])
def test_a_start_that_is_interrupted_twice(state):
    """The message says why, all processes end, and the cluster can be started."""
    cluster = wb.Cluster(n=1, cold=True)  # takes seconds: the interrupt comes earlier
    unsubscribe = cluster.subscribe(lambda: press() if cluster.state == state else None)
    with later(0.7, press), pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert (cluster.state, cluster.message) == ("stopped", "did not start: interrupted")
    assert eventually(lambda: not children("workbench.agent.program"))
    assert eventually(lambda: not children("workbench.cluster.controller"))
    unsubscribe()
    with cluster:
        assert quiet(cluster, "rank").values == {0: 0}


@pytest.mark.parametrize("state", ["stopping", "stopped"])
def test_a_start_that_fails_and_is_interrupted(state):
    """The reason for the failure is shown, not the interrupt of what has ended anyway."""
    cluster = wb.Cluster(hosts="nobody.invalid:1")
    press_in(cluster, state)
    with pytest.raises(StartFailed, match=r"nobody\.invalid"):
        cluster.start()
    assert cluster.state == "stopped"
    assert cluster.message.startswith("did not start: nobody.invalid")


def test_a_stop_that_is_interrupted():
    """All processes end, whenever the interrupt comes."""
    cluster = wb.Cluster(n=1).start()
    press_in(cluster, "stopping")
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    assert cluster.state == "stopped"
    assert eventually(lambda: not children("workbench.agent.program"))


def test_what_precedes_a_stop_is_interrupted():
    """The wait for the evidence bundles is over, and all processes end nevertheless."""
    cluster = wb.Cluster(n=1).start()
    wait = cluster._state.before_stop
    cluster._state.before_stop = lambda: (press(), wait())
    cluster._state.stop_at_exit()
    assert cluster.state == "stopped"
    assert not children("workbench.agent.program")


@pytest.mark.soak
def test_attaching_that_is_interrupted_again_and_again(tmp_path, monkeypatch, end):  # noqa: F811
    """The error says that variables are kept, and they are: the next try has them."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    source = KERNEL.format(
        arguments="n=2, keep='600s'",
        training="",
        then=IN_A_CELL.format(source=STUBBORN.format(end=str(end))),
    )
    subprocess.run(
        [sys.executable, "-c", source], timeout=PROCESS_S, check=False, env=with_support()
    )
    over = threading.Event()

    def keep_pressing():
        time.sleep(2.0)
        while not over.wait(0.1):
            press()

    def attach_meanwhile():
        thread = InThread(keep_pressing)
        try:
            return wb.Cluster.attach()
        finally:
            while thread.is_alive():
                with contextlib.suppress(KeyboardInterrupt):
                    over.set()
                    thread.join()

    with pytest.raises(ClusterError, match=r"interrupted before it was done.*are kept"):
        attach_meanwhile()
    end.touch()
    cluster = wb.Cluster.attach()
    try:
        assert eventually(lambda: cluster.state == "ready"), cluster.message
        assert cluster["kept"] == [0, 10]
    finally:
        cluster.stop()
    assert not list(tmp_path.glob("workbench-*"))
