"""A fault while no cell runs is named, and all that can go on does."""

import contextlib
import os
import re
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from timers import eventually, when

from workbench.cluster import TextSink, ValueNotSent
from workbench.errors import ClusterStopped, RanksFailed

from .box import (
    AGENT,
    CELL_S,
    CONTROLLER,
    ENDED,
    MEET,
    Fault,
    across,
    bounded,
    case_for_each,
    leader,
    quiet,
)

FAULTS = (
    Fault("a rank is SIGKILLed", by="killed_while_idle"),
    Fault("a rank segfaults", by="segfaults_while_idle", ring=False, soak=True),
    Fault("a rank is SIGSTOPped for a while", by="stopped_while_idle"),
    Fault("the agent is killed", by="agent_killed_while_idle", ring=False),
    Fault("the controller is killed", by="controller_killed_while_idle", ring=False),
    Fault(
        "ranks are changed after the controller was killed",
        by="change_without_a_controller",
        ring=False,
    ),
    Fault("the controller is paused for a while", by="controller_paused", ring=False, soak=True),
    Fault(
        "what the controller has started is killed",
        by="helpers_of_the_controller_killed",
        ring=False,
    ),
    Fault("a rank is replaced in a directory that is gone", by="directory_gone", ring=False),
    Fault("the ring was left", by="shut_down"),
    Fault("descriptor 1 was closed", by="descriptor_1_closed", ring=False),
    Fault("the module was deleted", by="module_deleted"),
    Fault("sys.stdout was replaced", by="stdout_replaced", ring=False),
    Fault("a value cannot be pickled", by="value_not_pickled", ring=False),
    Fault("a value cannot be unpickled", by="value_not_unpickled", ring=False),
    Fault("a value exits when unpickled", by="value_exits_when_unpickled", ring=False),
    Fault("a rank prints 20 MB", by="much_printed", ring=False, soak=True),
    Fault("a VM is cut off for good", by="vm_cut_while_idle", soak=True),
)

test_fault = case_for_each(FAULTS)


def replaced(box, name):
    """Rank 1 dies of a signal and is named; it can be replaced, and the others are kept."""
    assert eventually(lambda: box.cluster.ranks[1].state == "dead")
    assert box.cluster.state == "failed"
    assert re.search(rf"killed by {name}.*restart --ranks 1", box.cluster.message)
    with pytest.raises(ClusterStopped, match=rf"killed by {name}.*restart --ranks 1"):
        quiet(box.cluster, "1")
    box.cluster.restart()
    assert box.cluster.pull(["kept"], ranks=[0, 2]) == {0: {"kept": 0}, 2: {"kept": 20}}
    quiet(box.cluster, box.setup)
    box.lives()


def killed_while_idle(box):
    os.kill(box.cluster.ranks[1].pid, signal.SIGKILL)
    replaced(box, "SIGKILL")


def segfaults_while_idle(box):
    source = "if rank == 1: threading.Timer(0.3, ctypes.string_at, (0,)).start()"
    quiet(box.cluster, source)
    replaced(box, "SIGSEGV")


def stopped_while_idle(box):
    pid = box.cluster.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    sink, said = TextSink(), "Rank 1 is missing and does not answer: its process is stopped"
    waiter = when(lambda: said in sink.text, lambda: os.kill(pid, signal.SIGCONT))
    result = box.cluster.run(f"{MEET}; rank", sink=sink, timeout=CELL_S)
    waiter.join()
    assert said in result.output
    box.lives()


def killed_leader_while_idle(box, module):
    cluster = box.cluster
    os.kill(leader(module), signal.SIGKILL)
    assert eventually(lambda: cluster.ranks[0].state == "dead")
    with pytest.raises(ClusterStopped, match=ENDED[module]):
        quiet(cluster, "1")
    box.close()


def agent_killed_while_idle(box):
    killed_leader_while_idle(box, AGENT)


def controller_killed_while_idle(box):
    killed_leader_while_idle(box, CONTROLLER)


def change_without_a_controller(box):
    cluster = box.cluster
    os.kill(leader(CONTROLLER), signal.SIGKILL)
    assert eventually(lambda: cluster.ranks[0].state == "dead")
    what_helps = "killed by SIGKILL. Stop it with %cluster stop, and start another"
    for change in (cluster.restart, partial(cluster.resize, 2), cluster.resize, cluster.restart):
        with pytest.raises(ClusterStopped, match=what_helps) as raised:
            change()
        assert "Cannot change the ranks" in str(raised.value)
        with pytest.raises(ClusterStopped, match=what_helps):
            quiet(cluster, "1")
    box.close()


IMPATIENT = """
from ipyparallel.engine.app import IPEngine
engine = IPEngine.instance()
engine.max_heartbeat_misses = min(engine.max_heartbeat_misses, 2)
"""


def controller_paused(box):
    """Ranks outlast it, whatever the time: ipyparallel's would end after 35 s."""
    quiet(box.cluster, IMPATIENT)
    controller = psutil.Process(leader(CONTROLLER))
    processes = [controller, *controller.children()]
    for process in processes:
        process.suspend()
    time.sleep(4)
    for process in processes:
        process.resume()
    box.lives()


def helpers_of_the_controller_killed(box):
    """New ranks can join afterwards."""
    cluster = box.cluster
    for process in psutil.Process(leader(CONTROLLER)).children():
        process.kill()
    with bounded():
        cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def directory_gone(box, tmp_path):
    folder = tmp_path / "away"
    folder.mkdir()
    quiet(box.cluster, f"before = os.getcwd(); os.chdir({str(folder)!r})")
    assert set(quiet(box.cluster, "os.getcwd()").values.values()) == {str(folder)}
    folder.rmdir()
    with pytest.raises(RanksFailed, match="FileNotFoundError"):
        quiet(box.cluster, "os.getcwd()")
    box.cluster.restart([1])
    quiet(box.cluster, "os.chdir(before)", ranks=[0, 2])
    quiet(box.cluster, "kept = 10", ranks=[1])
    box.lives()


def shut_down(box):
    quiet(box.cluster, "leave()")
    box.lives()


def descriptor_1_closed(box):
    quiet(box.cluster, "os.close(1)")
    source = "import subprocess; print('printed'); subprocess.run(['echo', 'echoed'], check=True);"
    output = quiet(box.cluster, source).output
    assert "[ranks 0-2] printed" in output
    assert "[ranks 0-2] echoed" in output
    box.lives()


def module_deleted(box):
    name = box.backend.variable
    quiet(box.cluster, f"del {name}")
    assert set(quiet(box.cluster, f"type({name}).__name__").values.values()) == {"module"}
    box.lives()


def stdout_replaced(box):
    quiet(box.cluster, "sys.stdout = sys.stderr = open(os.devnull, 'w')\nprint('unheard')")
    assert "[ranks 0-2] heard" in quiet(box.cluster, "print('heard')").output
    box.lives()


def value_not_pickled(box):
    value = quiet(box.cluster, "threading.Lock()").values[1]
    assert isinstance(value, ValueNotSent)
    assert "cannot pickle" in value.reason
    quitting = "class Bad:\n    def __reduce__(self): sys.exit(3)\nBad()"
    with contextlib.suppress(RanksFailed):
        value = quiet(box.cluster, quitting).values[1]
        assert isinstance(value, ValueNotSent)
    box.lives()


UNREADABLE = "class Bad:\n    def __reduce__(self): return exec, ({!r},)\nBad()"


def value_not_unpickled(box):
    value = quiet(box.cluster, UNREADABLE.format("raise ValueError('no such thing')")).values[1]
    assert isinstance(value, ValueNotSent)
    assert "ValueError: no such thing" in value.reason
    box.lives()


def value_exits_when_unpickled(box):
    try:
        value = quiet(box.cluster, UNREADABLE.format("raise SystemExit(3)")).values[1]
    except SystemExit:
        pytest.fail("reading a value ended the kernel")
    assert isinstance(value, ValueNotSent)
    assert "SystemExit" in value.reason
    box.lives()


def much_printed(box):
    """100 MB arrive as well, in eleven seconds."""
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far may be of other tests
    source = "if rank == 1:\n    for _ in range(20): print(('x' * 99 + '\\n') * 10_000, end='')"
    with bounded():
        result = quiet(box.cluster, source)
    assert result.output.count("x" * 99) == 200_000
    assert psutil.Process().memory_info().rss - before < 1 << 30
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert int(peak) * 1024 - before < 3 << 30
    box.lives()


def vm_cut_while_idle(box, machines):
    box.close()
    with across(machines, box) as cluster:
        machines.cut("vm2")
        with bounded(), pytest.raises((RanksFailed, ClusterStopped), match="vm2 does not answer"):
            quiet(cluster, MEET)
        with bounded():
            cluster.resize()
        assert quiet(cluster, box.ask).values == {0: (0, 1.0)}
