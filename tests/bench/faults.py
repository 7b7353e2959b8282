"""Freed, named, replaced: seconds from a fault's cause to its effect, on three test VMs.

Causes and effects are measured by one clock, which the VMs share. Ranks note
themselves when an exception reached them; of several ranks, the last counts.
"""

import os
import signal
import threading
import time

from tests.bench.bounds import NotMeasured, at_most, sized
from workbench.cluster import TextSink
from workbench.testbed import vms, why_not

VMS = 3
ROUNDS = sized(3, 1)
"""Clusters, one after the other: one that has lost a VM is of no more use."""
TIMES = sized(2, 1)
"""Of each fault that a cluster survives."""
HANG_AFTER_S = 3.0

ERROR = "freed after another rank's error"
ENDED = "freed after another rank has ended its cell"
INTERRUPT = "freed after an interrupt"
KILL = "freed after SIGKILL of the rank they wait for"
KILL_IN_LOOP = "freed after SIGKILL amid allreduces"
CUT = "a lost VM named, awaited"
CUT_IN_LOOP = "a lost VM named, amid allreduces"
RESTART = "a replaced rank in the ring"
HANG = "a hang explained, after the threshold"
STOP = "stopped, though the agent is SIGSTOPped"
LIMITS_S = {
    ERROR: 1,
    ENDED: 3,
    INTERRUPT: 1,
    KILL: 3,
    KILL_IN_LOOP: 3,
    CUT: 10,
    CUT_IN_LOOP: 10,
    RESTART: 8,
    HANG: 2,
    STOP: 8,
}

PREPARE = """
import time
import torch
def fail():
    global raised
    raised = time.time()
    raise ValueError("on purpose")
def wait_for(late, reason):
    global freed, began
    began = time.time()
    try:
        if rank == late:
            reason()
        hvd.allreduce(torch.ones(1), name="awaited")
    except BaseException:
        freed = time.time()
        raise
def loop():
    global freed
    try:
        while True:
            hvd.allreduce(torch.ones(250_000), name="again")
    except BaseException:
        freed = time.time()
        raise
hvd.allreduce(torch.ones(1), name="first")
"""
WAITING = "wait_for(2, lambda: time.sleep(60))"
LOOP = "loop()"


class Notes(TextSink):
    """A sink that keeps when the kernel said something of its own."""

    def __init__(self):
        super().__init__()
        self.at = []

    def note(self, text):
        """Keep the time."""
        super().note(text)
        self.at.append(time.time())


def measure():
    """Cause each fault several times, and report how long its effect took."""
    if (reason := why_not()) is not None:
        raise NotMeasured(reason)
    import workbench as wb

    taken = {title: [] for title in LIMITS_S}
    with vms(VMS) as machines:
        for number in range(ROUNDS * 2):
            with wb.Cluster(
                hosts=machines.hosts(1),
                ssh_config=machines.ssh_config,
                hang_after_s=HANG_AFTER_S,
            ) as cluster:
                _run(cluster, PREPARE)
                if number < ROUNDS:
                    _survived(cluster, taken, number)
                title, source = (CUT_IN_LOOP, LOOP) if number % 2 else (CUT, WAITING)
                taken[title].append(_cut(cluster, machines, source))
            machines.mend(machines.names[-1])
    taken[STOP] += [_stop() for _ in range(ROUNDS)]
    for title, seconds in taken.items():
        yield at_most(f"{title}, the slowest of {len(seconds)}", seconds, LIMITS_S[title], "s", max)


def _survived(cluster, taken, number):
    """Cause the faults after which a cluster goes on."""
    for turn in range(TIMES):
        taken[ERROR].append(_error(cluster))
        taken[ENDED].append(_ended(cluster))
        taken[INTERRUPT].append(_interrupt(cluster))
        taken[HANG].append(_hang(cluster, (number * TIMES + turn) * 0.17))
        for title, source in ((KILL, WAITING), (KILL_IN_LOOP, LOOP)):
            freed, replaced = _kill(cluster, source)
            taken[title].append(freed)
            taken[RESTART].append(replaced)


def _error(cluster):
    _fail(cluster, "wait_for(1, fail)", "ValueError")
    return _last(cluster, "freed", "0,2") - _last(cluster, "raised", "1")


def _ended(cluster):
    _fail(cluster, "if rank == 1: ended = time.time()\nelse: wait_for(1, None)", "ended the cell")
    return _last(cluster, "freed", "0,2") - _last(cluster, "ended", "1")


def _interrupt(cluster):
    # a shell that starts this in the background has had it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cause = _later(lambda: os.kill(os.getpid(), signal.SIGINT))
        _fail(cluster, WAITING, "interrupted")
    finally:
        signal.signal(signal.SIGINT, before)
    return _last(cluster, "freed", "0-2") - cause()


def _hang(cluster, phase):
    """Seconds beyond the threshold; `phase` moves the hang against the questions to the ranks."""
    notes = Notes()
    source = f"time.sleep({phase})\nwait_for(1, lambda: time.sleep({HANG_AFTER_S + 3.5}))"
    cluster.run(source, sink=notes)
    if not notes.at:
        raise RuntimeError("a hang was not explained")
    began = min(row["began"] for row in cluster.pull(["began"], "0,2").values())
    return notes.at[0] - began - HANG_AFTER_S


def _kill(cluster, source):
    """Seconds until the others were free, and those that the new rank took."""
    victim = cluster.ranks[2].pid
    cause = _later(lambda: os.kill(victim, signal.SIGKILL))
    _fail(cluster, source, str(victim))
    began = time.time()
    cluster.restart()
    replaced = time.time() - began
    freed = _last(cluster, "freed", "0-1")
    _run(cluster, PREPARE)
    return freed - cause(), replaced


def _cut(cluster, machines, source):
    cause = _later(lambda: machines.cut(machines.names[-1]))
    _fail(cluster, source, machines.names[-1])
    return time.time() - cause()


def _stop():
    """Seconds of a stop on this machine whose agent does not answer."""
    import workbench as wb

    with wb.Cluster(n=2) as cluster:
        os.kill(cluster.agents[0].hello.pid, signal.SIGSTOP)
        began = time.time()
        cluster.stop()
        return time.time() - began


def _later(act, after_s=1.5):
    """Do something while a cell runs; return a function that returns when it began."""
    begun = []

    def wait_and_act():
        time.sleep(after_s)
        begun.append(time.time())
        act()

    threading.Thread(target=wait_and_act, daemon=True).start()
    return lambda: begun[0]


def _run(cluster, source):
    cluster.run(source, sink=Notes())


def _fail(cluster, source, words):
    """Run a cell that has to fail, with an error that says `words`."""
    from workbench.errors import CellError

    try:
        _run(cluster, source)
    except CellError as error:
        if words not in str(error):
            raise
        return
    raise RuntimeError(f"{source!r} did not fail")


def _last(cluster, name, ranks):
    """Return the last of the times that ranks have noted."""
    return max(row[name] for row in cluster.pull([name], ranks).values())
