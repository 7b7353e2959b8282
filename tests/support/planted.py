"""A cluster in a process of its own, with planted secrets, and everything it has open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
from timers import FAR_S, PROCESS_S

TESTS = Path(__file__).parents[1]
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-5cc1a0",
    "HF_TOKEN": "planted-hub-77e2d4",
    "JUPYTER_TOKEN": "planted-jupyter-91b3c8",
    "WANDB_API_KEY": "planted-wandb-02f6e9",
}
"""Secrets in the environment of the kernel."""
AGENT_SOCKET = "/nonexistent/planted-ssh-agent.sock"


class Planted:
    """The process of `planted_cluster`, with folders of its own that others may enter.

    Attributes
    ----------
    folder
        Has all that the cluster writes on this machine, except the sockets of its agents.
    about
        What the process has printed.
    """

    def __init__(self, *arguments):
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="wb-security-"))
        self.folder.chmod(0o755)  # a stranger is stopped by what is in it
        (self.folder / "tmp").mkdir()
        (self.folder / "tmp").chmod(0o1777)
        environment = {
            **os.environ,
            **PLANTED,
            "SSH_AUTH_SOCK": AGENT_SOCKET,
            "WORKBENCH_SECURITY_MARK": self.mark,
            "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)]),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "jupyter" / "runtime"),
            "GRADIENT_WORKBENCH_RUNS": str(self.folder / "data" / "runs"),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        (self.folder / "home").mkdir()
        program = [sys.executable, str(TESTS / "support" / "planted_cluster.py"), *arguments]
        with (self.folder / "kernel.log").open("wb") as log:
            self.process = subprocess.Popen(
                program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, cwd=self.folder, text=True,
            )  # fmt: skip
        self.about = self._read()

    def run(self, source):
        """Run a line on the ranks; return their values."""
        self.process.stdin.write(f"{source}\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self):
        line = self.process.stdout.readline()
        assert line, (self.folder / "kernel.log").read_text()
        return json.loads(line)

    def processes(self):
        """The kernel, and what it has started on this machine and in VMs."""
        found = {}
        own = psutil.Process(self.process.pid)
        for one in [own, *own.children(recursive=True), *psutil.process_iter()]:
            try:
                if one == own or one.environ().get("WORKBENCH_SECURITY_MARK") == self.mark:
                    found[one.pid] = one
            except psutil.Error:
                continue
        tree = [one for root in list(found.values()) for one in root.children(recursive=True)]
        return {**found, **{one.pid: one for one in tree}}

    def listening(self):
        """The TCP ports on which the processes in this network namespace listen."""
        found = {}
        for pid, process in self.processes().items():
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found[one.laddr.ip, one.laddr.port] = pid
        return found

    def sockets(self):
        """The paths of the Unix sockets of the processes."""
        return {
            one.laddr
            for process in self.processes().values()
            for one in process.net_connections("unix")
            if one.laddr
        }

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(FAR_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def stranger(given, user=None, inside=None):
    """What someone without keys can do, as another user, or by a command in another place."""
    arguments = [str(user)] if user is not None else []
    program = [sys.executable, str(TESTS / "support" / "stranger.py"), *arguments]
    done = subprocess.run(
        program if inside is None else inside(program), input=json.dumps(given), text=True,
        capture_output=True, timeout=PROCESS_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)
