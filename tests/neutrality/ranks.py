"""Runs a training in cells of a cluster, and in plain processes without this package."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from clusters import quiet
from timers import FAR_S

import workbench as wb
from workbench.cluster.backends.horovod import Rendezvous, assign
from workbench.errors import RanksFailed
from workbench.horovod_build.commands import end_group

HERE = Path(__file__).parent
FOLDERS = [str(HERE), str(HERE.parent / "support")]
"""Where the ranks find `trainings`, and what these use."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HOROVOD_CYCLE_TIME": "1",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    "HOROVOD_FUSION_THRESHOLD": "0",  # fusion changes the order of sums between two runs
}
"""Variables of the ranks, with and without this package."""
_END_S = 5.0
"""How long plain processes may take to end."""


class PlainRanks:
    """Plain processes, as torchrun or horovodrun start them, which run trainings in turn.

    They are started for the first training, and anew after one that has failed: it may have left
    collectives unfinished.

    Parameters
    ----------
    backend
        "horovod" or "ddp".
    n
        The number of ranks.
    folder
        Where their output is written.
    """

    def __init__(self, backend, n, folder):
        self._backend = backend
        self._n = n
        self._log = folder / f"{backend} on {n} ranks.log"
        self._process = None
        self._ring = contextlib.ExitStack()

    def start(self):
        """Start the processes, unless they run."""
        if self._process is not None:
            return
        clean = {name: text for name, text in os.environ.items() if not _belongs_to_a_ring(name)}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainings.kinds", self._backend],
                env=clean | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(FOLDERS)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip
        self._write(json.dumps(self._horovod() if self._backend == "horovod" else self._torchrun()))

    def run(self, name):
        """Run a training.

        Returns
        -------
        dict
            The state of each rank at the end, or its error; see `trainings.kinds.run`.
        """
        self.start()
        self._write(name)
        stdout = self._process.stdout
        line = stdout.readline() if select.select([stdout], [], [], FAR_S)[0] else ""
        states = dict(enumerate(json.loads(line or '[{"error": "no answer"}]')))
        if failed(states):
            self.close()
        return states

    def close(self):
        """End the processes."""
        if self._process is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._process.stdout.close()
            end_group(self._process)
        self._process = None
        self._ring.close()

    def log(self):
        """Return the end of what the processes have written."""
        return self._log.read_text()[-4000:]

    def _write(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _horovod(self):
        plan = assign(["here"] * self._n)
        ring = self._ring.enter_context(contextlib.closing(Rendezvous(plan)))
        ring.start()
        return [ring.environment(rank, "lo") for rank in range(self._n)]

    def _torchrun(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(self._n),
            "LOCAL_WORLD_SIZE": str(self._n),
        }
        return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self._n)]


def failed(states):
    """Return whether a training has failed on a rank."""
    return any("error" in state for state in states.values())


def _belongs_to_a_ring(name):
    return name.startswith(("HOROVOD_", "GLOO_", "MASTER_", "TORCHELASTIC_"))


class CellRanks:
    """A cluster whose cells run trainings.

    Parameters
    ----------
    backend
        "horovod" or "ddp".
    n
        The number of ranks.
    """

    def __init__(self, backend, n):
        self._backend = backend
        self._cluster = wb.Cluster(n=n, backend=backend)

    def run(self, name, *, recording):
        """Run a training in a cell.

        Returns
        -------
        dict
            The state of each rank at the end, or its error.
        dict
            How many iterations were recorded on each rank, if there were any.
        """
        cluster = self._cluster
        if cluster.state == "stopped":
            cluster.start()
        cluster.recording = recording
        before = cluster.timings.to_frame()["iteration"].max()
        states = self._states(name)
        table = cluster.timings.to_frame()
        counts = table[~(table["iteration"] <= before)].groupby("rank").size()
        if failed(states):
            self.close()
        return states, {int(rank): int(count) for rank, count in counts.items()}

    def close(self):
        """Stop the cluster."""
        self._cluster.stop()

    def _states(self, name):
        source = f"""
import sys
sys.path += [folder for folder in {FOLDERS!r} if folder not in sys.path]
from trainings import kinds
kinds.run({self._backend!r}, {name!r})
"""
        try:
            return quiet(self._cluster, source, timeout=FAR_S).values
        except RanksFailed as error:
            return {0: {"error": f"the cell has failed: {error}"}}
