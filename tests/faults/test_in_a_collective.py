"""After a fault in a cell, ranks that wait in a collective are freed."""

import os
import re
import signal
import textwrap
import time

import pytest
from clusters import children
from disks import small_disk
from timers import later, when

from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, RanksFailed

from .box import (
    AGENT,
    CELL_S,
    CONTROLLER,
    ENDED,
    MEET,
    SMALL,
    Fault,
    across,
    bounded,
    case_for_each,
    interrupt,
    leader,
    quiet,
)

TAKEN = """
opened, limit = [], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (512, limit[1]))
try:
    while True: opened.append(os.open(os.devnull, os.O_RDONLY))
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    for descriptor in opened: os.close(descriptor)
"""
MUTE = """
class Mute(Exception):
    def __str__(self): raise OSError('mute')
raise Mute
"""
FAULTS = (
    Fault("a rank raises", "raise ValueError('boom')", "ValueError: boom"),
    Fault("a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL", (1,)),
    Fault("a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", (1,)),
    Fault("a rank calls os._exit", "os._exit(7)", "exit status 7", (1,), soak=True),
    Fault("a rank aborts", "os.abort()", r"killed by SIGABRT\n", (1,), ring=False, soak=True),
    Fault("a rank calls sys.exit", "sys.exit(8)", "SystemExit"),
    Fault(
        "a rank raises KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt", soak=True
    ),
    Fault("a rank has no memory left", SMALL, "MemoryError"),
    Fault("a rank has no descriptor left", TAKEN, "Too many open files", soak=True),
    Fault("a rank raises what has no text", MUTE, "Mute"),
    Fault("a rank leaves the ring", "leave(); 1/0", "ZeroDivisionError"),
    Fault("a full disk", by="full_disk_in_a_cell", ring=False),
    Fault("a rank is SIGSTOPped for a while", by="stopped_in_a_collective"),
    Fault("a thread of a waiting rank segfaults", by="thread_segfaults_in_a_collective"),
    Fault("a thread of a waiting rank raises", by="thread_raises_in_a_collective", soak=True),
    Fault("the agent is killed", by="agent_killed_in_a_collective", ring=False),
    Fault("the controller is killed", by="controller_killed_in_a_collective", ring=False),
    Fault("the kernel is interrupted", by="interrupted_in_a_collective"),
    Fault("names differ", by="names_differ"),
    Fault("shapes differ", by="shapes_differ"),
    Fault("dtypes differ", by="dtypes_differ", soak=True),
    Fault("batch counts differ", by="batch_counts_differ"),
    Fault("a rank holds the GIL", by="gil_held"),
    Fault("a link is cut for two seconds", by="link_cut_and_mended", soak=True),
    Fault("the ssh client is killed", by="ssh_killed", ring=False, soak=True),
)

test_fault = case_for_each(FAULTS, usual="cell_fails")


# two ranks wait in it when the third fails


def cell_fails(box, fault):
    source = f"if rank == 1:\n    time.sleep(0.3)\n{textwrap.indent(fault.code, '    ')}\n{MEET}"
    cluster = box.cluster  # its start takes a time of its own
    with bounded(), pytest.raises(RanksFailed, match=rf"(?s){fault.says}") as caught:
        quiet(cluster, source)
    assert list(caught.value.errors) == [1]
    assert "[ranks 0,2] freed" in str(caught.value)
    box.lives(fault.dead)
    quiet(box.cluster, "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))")


def full_disk_in_a_cell(box, tmp_path):
    with small_disk(tmp_path / "disk") as folder:
        source = f"""
before = os.getcwd()
try:
    if rank == 1:
        os.chdir({str(folder)!r})
        with open("checkpoint.pt", "wb") as file:
            torch.save(torch.ones(1 << 20), file)
    {MEET}
finally:
    os.chdir(before)
"""
        with pytest.raises(RanksFailed, match=r"No space left|PytorchStreamWriter|write") as caught:
            quiet(box.cluster, source)
        assert list(caught.value.errors) == [1]
        with pytest.raises(RanksFailed, match="No space left on device"):
            quiet(box.cluster, f"open({str(folder / 'x')!r}, 'w').write('x' * (1 << 20))")
    box.lives()


def stopped_in_a_collective(box):
    pid, sink = box.cluster.ranks[1].pid, TextSink()
    source = f"if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n{MEET}; rank"
    said = "Rank 1 is missing and does not answer: its process is stopped"
    waiter = when(lambda: said in sink.text, lambda: os.kill(pid, signal.SIGCONT))
    result = box.cluster.run(source, sink=sink, timeout=CELL_S)
    waiter.join()
    assert said in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


def in_a_thread(code, mark, pid):
    """A cell in which rank 1 waits in a collective when one of its threads does something.

    Rank 2 joins the collective when that thread has ended, which makes a file, `mark`,
    or when the process of rank 1 has.
    """
    return f"""
def soon():
    time.sleep(0.3)
    {code}
def note(thread):
    thread.join()
    open({str(mark)!r}, "w").close()
if rank == 1:
    thread = threading.Thread(target=soon)
    thread.start()
    threading.Thread(target=note, args=[thread]).start()
while rank == 2 and not os.path.exists({str(mark)!r}) and psutil.pid_exists({pid}):
    time.sleep(0.05)
{MEET}; rank"""


def thread_segfaults_in_a_collective(box, tmp_path):
    source = in_a_thread("ctypes.string_at(0)", tmp_path / "ended", box.cluster.ranks[1].pid)
    with bounded(), pytest.raises(RanksFailed, match="killed by SIGSEGV") as caught:
        quiet(box.cluster, source)
    assert list(caught.value.errors) == [1]
    box.lives(dead=(1,))


def thread_raises_in_a_collective(box, tmp_path):
    raises, pid = "raise ValueError('boom')", box.cluster.ranks[1].pid
    result = quiet(box.cluster, in_a_thread(raises, tmp_path / "ended", pid))
    assert "[rank 1] ValueError: boom" in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


WAIT = f"if rank == 1: time.sleep(600)\n{MEET}"


def killed_in_a_collective(box, module):
    cluster, pid = box.cluster, leader(module)
    with (
        bounded(),
        later(0.5, lambda: os.kill(pid, signal.SIGKILL)),
        pytest.raises(RanksFailed, match=ENDED[module]),
    ):
        quiet(cluster, WAIT)
    box.lost()


def agent_killed_in_a_collective(box):
    killed_in_a_collective(box, AGENT)


def controller_killed_in_a_collective(box):
    killed_in_a_collective(box, CONTROLLER)


def interrupted_in_a_collective(box):
    cluster = box.cluster
    with bounded(), later(0.5, interrupt), pytest.raises(CellInterrupted):
        quiet(cluster, WAIT)
    box.lives()


def names_differ(box):
    sink, its = TextSink(), box.backend
    said = rf"\[rank 0\] in {its.broadcast.replace('met', 'other')}; \[ranks 1-2\] in {its.total}"
    source = f"{MEET} if rank else broadcast('other'); {MEET}"
    waiter = when(lambda: re.search(said, sink.text), interrupt)
    with bounded(), pytest.raises(CellInterrupted):
        box.cluster.run(source, sink=sink, timeout=CELL_S)
    waiter.join()
    assert re.search(said, sink.text)
    box.lives()


def tensors_differ(box, source, says):
    """Horovod raises an error on each rank; Gloo ends a rank."""
    with bounded(), pytest.raises(RanksFailed, match=says):
        quiet(box.cluster, source)
    dead = tuple(info.rank for info in box.cluster.ranks if info.state == "dead")
    assert bool(dead) == box.backend.mismatch_ends
    box.lives(dead)


def shapes_differ(box):
    source = "total('met', torch.ones(100_000 * (1 + rank)))"
    tensors_differ(box, source, box.backend.mismatches[0])


def dtypes_differ(box):
    dtype = "(torch.float32, torch.float64)[rank == 1]"
    source = f"total('met', torch.ones(100_000, dtype={dtype}))"
    tensors_differ(box, source, box.backend.mismatches[1])


def batch_counts_differ(box):
    source = f"for batch in range(4 + rank): {MEET}"
    says = f"rank 0 ended the cell while ranks 1-2 wait in {box.backend.total}"
    with bounded(), pytest.raises(RanksFailed, match=says):
        quiet(box.cluster, source)
    box.lives()


def gil_held(box, tmp_path):
    """`PyDLL` keeps the GIL, as a slow regular expression does, until another opens the pipe."""
    pipe, sink = tmp_path / "pipe", TextSink()
    os.mkfifo(pipe)
    source = f"if rank == 1: ctypes.PyDLL(None).open({bytes(pipe)!r}, os.O_RDONLY)\n{MEET}; rank"
    waiter = when(lambda: "Python's lock" in sink.text, lambda: pipe.open("w").close())
    result = box.cluster.run(source, sink=sink, timeout=CELL_S)
    waiter.join()
    assert "Rank 1 is missing and does not answer" in result.output
    assert "Python's lock" in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


def link_cut_and_mended(box, machines, tmp_path):
    box.close()
    here, cut = tmp_path / "here", tmp_path / "cut"
    with across(machines, box) as cluster:
        source = f"""
for i in range(60):
    if i == 20:
        open({str(here)!r}, "w").close()
        while not os.path.exists({str(cut)!r}): time.sleep(0.01)
    time.sleep(0.03)
    print("said", i)
    assert total(f"{{i}}") == 2.0
"""
        mended = []

        def cut_and_mend():
            machines.cut("vm2")
            cut.touch()
            time.sleep(2)
            mended.append(time.monotonic())
            machines.mend("vm2")

        waiter = when(here.exists, cut_and_mend)
        result = quiet(cluster, source)
        ended = time.monotonic()
        waiter.join()
        assert ended > mended[0]
        for rank in range(2):
            ranks = rf"\[rank(s 0-1| {rank})\]"
            assert len(re.findall(rf"(?m)^{ranks} said \d+$", result.output)) == 60
        assert cluster["kept"] == [0, 10]
        assert cluster.state == "ready"


def ssh_killed(box, machines):
    box.close()
    with across(machines, box) as cluster:
        clients = children("vm2")
        with later(0.5, lambda: [client.kill() for client in clients]), bounded():
            met = quiet(cluster, f"if rank == 1: time.sleep(3)\n{MEET}")
        assert clients
        assert all(not client.is_running() for client in clients)
        assert list(met.values.values()) == [2.0, 2.0]
        assert [row[0] for row in quiet(cluster, box.ask).values.values()] == [0, 10]
        cluster.restart(ranks="1")
        assert [row[0] for row in quiet(cluster, box.ask).values.values()] == [0, None]
