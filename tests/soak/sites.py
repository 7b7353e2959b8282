"""Where the ranks are: on this machine, or on three test VMs."""

import contextlib
import os
import secrets
import signal
import subprocess

import psutil
from clusters import children
from combinations import BACKENDS

import workbench as wb
from workbench.cluster import TextSink

from . import clock
from .faults import KINDS, ONLY_VMS

RANKS = 3
CELL_S = 120.0
"""A cell that takes longer hangs."""
START_S = 300.0
AGENT, CONTROLLER = "workbench.agent.program", "workbench.cluster.controller"
CHECK = "globals().get('kept'), total('check', torch.tensor([rank + 1.0]))"
"""The variable of each rank, and a sum over all of them."""
SUM = sum(range(1, RANKS + 1))
THOROUGH = """
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
if {new}: make()
large = torch.full((50_000,), rank + 1.0)
right = total('large', large) == {sum}
broadcast('check')
train(1)
kept = {token!r}, rank
del large
right, len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd'))
"""


class Site:
    """A cluster of three ranks, which is started again where nothing else helps.

    Parameters
    ----------
    where
        ``"local"`` or ``"vms"``.
    backend
        The backend of the ranks, of `BACKENDS`.
    machines
        The test VMs; None for ``"local"``.
    """

    def __init__(self, where, backend, machines):
        self.where = where
        self.backend = BACKENDS[backend]
        self.machines = machines
        self.cluster = None
        self.token = ""
        self.namespaces = set()
        if machines is not None:
            for name in machines.names:
                link = machines.run(name, ["readlink", "/proc/self/ns/net"]).stdout.strip()
                self.namespaces.add(link)

    def __str__(self):
        return f"{self.where}, {self.backend}"

    def kinds(self):
        """Return the kinds of faults that can be played here, and why others cannot, by kind."""
        why = {}
        if self.machines is None:
            why = dict.fromkeys(ONLY_VMS, "only on VMs")
        if not clock.is_loaded():
            why["clock"] = clock.why_not() or "the library that steps the clock is not loaded"
        return [kind for kind in KINDS if kind not in why], why

    def start(self):
        """Start the ranks, with new variables."""
        options = {"n": RANKS, "start_timeout_s": START_S}
        if self.machines is not None:
            options |= {"hosts": self.machines.hosts(1), "ssh_config": self.machines.ssh_config}
            del options["n"]
        for name, value in self.backend.environment.items():
            os.environ[name] = value
        self.cluster = wb.Cluster(backend=self.backend.name, **options)
        self.cluster.start()
        self.check(range(RANKS))

    def stop(self):
        """Stop the ranks, in whatever state they are."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.stop()

    def run(self, source):
        """Run a cell whose output nobody sees; return the values of the ranks."""
        found = self.cluster.run(self.backend.cells + source, sink=TextSink(), timeout=CELL_S)
        return found.values

    def lost(self):
        """Return the ranks that are dead."""
        return {info.rank for info in self.cluster.ranks if info.state == "dead"}

    def wrong(self, new):
        """Return which variables and sums are wrong, as text; empty for none.

        Parameters
        ----------
        new
            The ranks whose processes are new, and have no variables.
        """
        expected = {
            rank: (None if rank in new else (self.token, rank), float(SUM)) for rank in range(RANKS)
        }
        found = self.run(CHECK)
        return "; ".join(
            f"rank {rank} has variable and sum {found.get(rank)} instead of {value}"
            for rank, value in expected.items()
            if found.get(rank) != value
        )

    def check(self, new):
        """Train, and set new variables; return what is wrong, and the numbers of the ranks.

        Returns
        -------
        tuple
            A text, empty if nothing is wrong; and threads and descriptors of the ranks.
        """
        self.token = secrets.token_hex(4)
        found = self.run(THOROUGH.format(new=bool(new), sum=SUM, token=self.token))
        wrong = [rank for rank, value in found.items() if not value[0]]
        levels = {
            "threads of a rank": max(value[1] for value in found.values()),
            "descriptors of a rank": max(value[2] for value in found.values()),
        }
        return f"the sum of a large tensor is wrong on ranks {wrong}" if wrong else "", levels

    def ssh_clients(self, rank):
        """Return the ssh clients of a rank's VM."""
        return children(f"vm{rank + 1}")

    def agent(self, rank):
        """Return the agent of a rank's VM, as a process."""
        process = psutil.Process(self.cluster.ranks[rank].pid)
        return next(one for one in process.parents() if AGENT in one.cmdline())

    def served_by(self, kind, rank):
        """Return the ranks that are lost with the agent of a rank, or with the controller."""
        if kind == "controller" or self.machines is None:
            return set(range(RANKS))
        return {rank}

    def controller(self):
        """Return the controller, as a process."""
        (process,) = children(CONTROLLER)
        return process


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 64 KB; None where it cannot be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "soak", str(folder)]
    done = subprocess.run(["mount", *options], check=False, capture_output=True)
    try:
        yield folder if done.returncode == 0 else None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def interrupt(main):
    """Do as Ctrl-C in the kernel does."""
    signal.pthread_kill(main, signal.SIGINT)
