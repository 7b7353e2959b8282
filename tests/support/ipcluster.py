"""A cluster that ipyparallel has started: a real controller, and engines here or on test VMs."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ipyparallel
from timers import eventually


class IpCluster:
    """A controller and its engines.

    Attributes
    ----------
    file
        The connection file for clients.
    engines
        The engines' processes, in the order of their start.
    """

    def __init__(self, folder, ip="127.0.0.1"):
        self._profile = folder / "profile_test"
        self.file = self._profile / "security" / "ipcontroller-client.json"
        self.engines = []
        self._log = (folder / "log.txt").open("wb")
        self.controller = self._run(
            "ipyparallel.controller", f"--ip={ip}", "--HeartMonitor.period=500", "--nodb", "--init"
        )
        assert eventually(self._ready), (folder / "log.txt").read_text()

    def _ready(self):
        names = ("client", "engine")
        files = [self.file.with_name(f"ipcontroller-{name}.json") for name in names]
        return all(file.exists() and file.read_text().endswith("}") for file in files)

    def _run(self, module, *arguments, inside=lambda command: command, **environment):
        command = [sys.executable, "-m", module, f"--profile-dir={self._profile}", *arguments]
        return subprocess.Popen(
            inside(command),
            stdout=self._log,
            stderr=self._log,
            env=os.environ | environment,
            cwd=self._profile.parent,  # Python imports from there
            start_new_session=True,  # the controller's schedulers do not end with it
        )

    def add(self, inside=lambda command: command, **environment):
        """Start an engine, and return its process; `inside` is the command that runs one in a VM.

        `ForeignCluster.wait_for_engines` is what waits for it.
        """
        engine = self._run("ipyparallel.engine", inside=inside, **environment)
        self.engines.append(engine)
        return engine

    def stop(self):
        """End everything."""
        processes = [*self.engines, self.controller]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()


@contextlib.contextmanager
def running(ip="127.0.0.1"):
    """Run a controller while the block runs; see `IpCluster.add` for engines."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = IpCluster(Path(folder), ip)
        try:
            yield cluster
        finally:
            cluster.stop()


@contextlib.contextmanager
def engine(of, *, inside=lambda command: command, **environment):
    """An engine that is registered."""
    with contextlib.closing(ipyparallel.Client(str(of.file))) as client:
        before = set(client.ids)
        process = of.add(inside, **environment)
        assert eventually(lambda: set(client.ids) - before)
        (number,) = set(client.ids) - before
        try:
            yield client[number]
        finally:
            process.kill()
            process.wait()
        assert eventually(lambda: number not in client.ids)
