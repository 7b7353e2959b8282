"""Plays faults one after another, and checks after each that everything is as before."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

import psutil
from timers import eventually, when, within

from workbench.errors import ClusterStopped, WorkbenchError

from . import clock
from .faults import ERRORS, Fault, drawn
from .levels import grown, levels, memory_mb
from .sites import interrupt

BLOCK = 25
"""So many faults are played in one place, then as many in the next."""
SETTLE_S = 30.0
"""For how long something may be left after a fault, on a loaded machine."""
STEPS = 8
ENDLESS = {"interrupt", "agent", "controller"}
UNTIL_DONE = {"link", "ssh", "clock"}
FROM_KERNEL = ENDLESS | UNTIL_DONE | {"stop", "hang"}
CELL = """
def note():
    with open({mark!r} + '.new', 'w') as file: file.write(repr(time.monotonic()))
    os.rename({mark!r} + '.new', {mark!r})
def is_over(step):
    if {endless}: return False
    if not {until_done}: return step >= {steps}
    return total('over', torch.tensor([float(os.path.exists({done!r}))])) > 0
def cell():
    step = 0
    while not is_over(step):
        if step == {step} and rank == {rank}:
            note()
            exec({code!r}, globals())
        {use}
        time.sleep(0.01)
        step += 1
cell()
"""


def _open_a_file(_site):
    os.open(os.devnull, os.O_RDONLY)


def _start_a_process(_site):
    subprocess.Popen(["sleep", "60"])


def _lose_a_variable(site):
    site.run("if rank == 0: del kept")


def _make_sums_wrong(site):
    site.run(
        """
if rank == 0:
    def allreduce(*given, right=getattr(hvd.allreduce, "right", hvd.allreduce), **options):
        return right(*given, **options) + (options.get("name") in ("check", "large"))
    allreduce.right = allreduce.__kwdefaults__["right"]
    hvd.allreduce = allreduce
"""
    )


PLANTS = {
    "descriptor": _open_a_file,
    "process": _start_a_process,
    "variable": _lose_a_variable,
    "sum": _make_sums_wrong,
}
"""Defects of this product that a test plants, to see that they are reported."""


@dataclass(frozen=True)
class Outcome:
    """What has become of a fault.

    Attributes
    ----------
    fault, site
        What was played, and where.
    recovery_s
        From the fault to a right sum over all ranks; for a fault that lasts, from its end.
    lost
        How many ranks were lost, with their variables.
    wrong
        What was wrong; empty if nothing was.
    memory_mb
        The memory of the kernel afterwards.
    """

    fault: Fault
    site: str
    recovery_s: float
    lost: int
    wrong: str
    memory_mb: float


class Soak:
    """Plays the faults of one seed.

    Parameters
    ----------
    sites
        Where the faults are played, a block of them in each.
    folder
        A folder for marks and temporary files.
    disk
        A small file system, or None.
    plant
        The defects that are planted with each fault, of `PLANTS`.
    """

    def __init__(self, seed, sites, folder, disk, plant=()):
        self.seed = seed
        self.sites = sites
        self.folder = folder
        self.disk = disk
        self.plant = plant
        self.playing = ""
        self._main = threading.main_thread().ident
        self._known = set()
        self._allowed = {}
        self._at = 0.0
        """When the fault happened, or has ended."""

    def kinds(self, site):
        """Return the kinds of faults that are played in a place."""
        kinds, _ = site.kinds()
        return [kind for kind in kinds if kind != "disk" or self.disk is not None]

    def site_of(self, number):
        """Return the place of a fault."""
        return self.sites[number // BLOCK % len(self.sites)]

    def play(self, number):
        """Play a fault; return what has become of it."""
        site = self.site_of(number)
        fault = drawn(self.seed, number, self.kinds(site))
        self.playing = f"{site}: {fault}"
        for other in self.sites:
            if other is not site:
                other.stop()
        if site.cluster is None:
            site.start()
        wrong, lost, recovery_s = [], set(), 0.0
        try:
            wrong.append(self._happen(site, fault))
            lost, text = self._recover(site, fault)
            for name in self.plant:
                PLANTS[name](site)
            wrong += [text, site.wrong(lost)]
            recovery_s = time.monotonic() - self._at
            text, numbers = site.check(lost)
            wrong += [text, self._left(site, fault, numbers)]
        except (WorkbenchError, KeyboardInterrupt) as error:
            wrong.append(f"{type(error).__name__}: {error}"[-2000:])
            site.stop()
        text = "; ".join(filter(None, wrong))
        return Outcome(fault, str(site), recovery_s, len(lost), text, memory_mb())

    def _happen(self, site, fault):
        """Have the fault happen; return what is wrong about how the cell has ended."""
        mark, done = self.folder / f"mark-{fault.number}", self.folder / f"done-{fault.number}"
        for path in (mark, done):
            path.unlink(missing_ok=True)
        self._at = 0.0
        if fault.idle:
            self._act(site, fault, done)
            return ""
        thread = None
        if fault.kind in FROM_KERNEL:
            thread = when(mark.exists, lambda: self._act(site, fault, done))
        error = ""
        source = CELL.format(
            mark=str(mark),
            done=str(done),
            endless=fault.kind in ENDLESS,
            until_done=fault.kind in UNTIL_DONE,
            steps=STEPS,
            step=fault.step,
            rank=fault.rank,
            code=fault.code.format(disk=str(self.disk)) if fault.kind == "disk" else fault.code,
            use=fault.use,
        )
        try:
            site.run(source)
        except (WorkbenchError, KeyboardInterrupt) as raised:
            error, self._text = type(raised).__name__, str(raised)
        if thread is not None:
            thread.join()
        elif mark.exists():
            self._at = float(mark.read_text())
        if not mark.exists():
            return f"the fault has not happened: {error} {self._text}"[-2000:]
        if error not in ERRORS[fault.kind]:
            return f"the cell has ended with {error or 'no error'}: {self._text}"[-2000:]
        return ""

    def _act(self, site, fault, done):
        """Do what the kernel's side of a fault does, and note when it has happened or ended."""
        action = getattr(self, f"_{fault.kind}")
        action(site, fault)
        if fault.kind not in {"interrupt", "hang"}:
            self._at = time.monotonic()
        done.touch()

    def _kill(self, site, fault):
        os.kill(site.cluster.ranks[fault.rank].pid, signal.SIGKILL)

    def _stop(self, site, fault):
        process = psutil.Process(site.cluster.ranks[fault.rank].pid)
        if fault.idle:
            process.suspend()
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        time.sleep(fault.duration_s)
        process.resume()

    def _interrupt(self, _site, fault):
        time.sleep(fault.duration_s)
        self._at = time.monotonic()
        interrupt(self._main)

    _hang = _interrupt

    def _agent(self, site, fault):
        site.agent(fault.rank).kill()

    def _controller(self, site, _fault):
        site.controller().kill()

    def _link(self, site, fault):
        name = site.machines.names[fault.rank]
        site.machines.cut(name)
        try:
            time.sleep(fault.duration_s)
        finally:
            site.machines.mend(name)

    def _ssh(self, site, fault):
        for client in site.ssh_clients(fault.rank):
            client.kill()

    def _clock(self, _site, fault):
        clock.step(fault.clock_s)
        try:
            time.sleep(fault.duration_s)
        finally:
            clock.step(0)

    def _recover(self, site, fault):
        """Replace what is lost, as the message says; return the lost ranks, and what is wrong."""
        expected = set()
        if fault.kind in {"kill", "exit"}:
            expected = {fault.rank}
        elif fault.kind in {"agent", "controller"}:
            expected = site.served_by(fault.kind, fault.rank)
        eventually(lambda: site.lost() >= expected)
        lost, cluster = site.lost(), site.cluster
        wrong = "" if lost == expected else f"ranks {lost} are lost instead of {expected}"
        if lost:
            try:
                cluster.restart()
            except ClusterStopped as error:
                if "%cluster stop" not in str(error):
                    raise
                site.stop()
                site.start()
                lost = set(range(len(site.cluster.ranks)))
                site.run("del kept")
        elif cluster.state != "ready":
            wrong += f"the cluster is {cluster.state}: {cluster.message}"
            cluster.restart()
        return lost, wrong

    def _left(self, site, fault, numbers):
        """Return what the fault has left behind, as text; empty for nothing."""

        def now():
            return levels(site.namespaces, self.folder / "tmp") | numbers

        allowed = self._allowed.setdefault(str(site), {})
        key = (str(site), fault.kind, fault.idle)
        if key in self._known:
            within(SETTLE_S, lambda: not grown(now(), allowed))
            found = now()
            text = grown(found, allowed)
        else:  # what the first of a kind imports or opens may stay
            self._known.add(key)
            found, text = self._settled(now), ""
        for name, count in found.items():
            allowed[name] = max(count, allowed.get(name, 0))
        return text and f"left behind: {text}"

    def _settled(self, now):
        """Return the least of each number within some seconds, in which processes end."""
        found = now()
        for _ in range(3):
            time.sleep(0.5)
            found = {name: min(count, found[name]) for name, count in now().items()}
        return found
