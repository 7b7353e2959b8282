"""Kernels that are forked from one process, which has imported what all of them need.

Such a kernel is like ``python -c SOURCE``, without the imports. Run as a program, this file is that
process: it ends with its standard input.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULES = ["workbench", "workbench.cluster.cluster", "workbench.cluster.recovery",
           "workbench.timings", "workbench.wire", "workbench.advisor", "ipyparallel", "pandas",
           "clusters"]  # fmt: skip


class _Parent:
    """The process that forks kernels; it starts with the first of them."""

    def __init__(self):
        folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment,
        )  # fmt: skip

    def fork(self, request, timeout):
        """Run a kernel to its end; return its exit status."""
        deadline = time.monotonic() + timeout
        self._process.stdin.write(json.dumps(request) + "\n")
        pid = self._answer(deadline)
        try:
            return self._answer(deadline)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._answer(time.monotonic() + timeout)
            raise

    def _answer(self, deadline):
        left_s = max(0, deadline - time.monotonic())
        if not select.select([self._process.stdout], [], [], left_s)[0]:
            raise TimeoutError("a forked kernel did not end in time")
        return int(self._process.stdout.readline())

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


_parents = []


def end_all():
    """End the process that forks them."""
    while _parents:
        _parents.pop().stop()


def run(source, environment, timeout):
    """Run a kernel to its end in the current directory.

    Returns
    -------
    subprocess.CompletedProcess
        With the text that the kernel has written.
    """
    if not _parents:
        _parents.append(_Parent())
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "source": source,
            "environment": dict(environment),
            "directory": str(Path.cwd()),
            "output": folder,
        }
        status = _parents[0].fork(request, timeout)
        texts = [Path(folder, name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess([source], status, *texts)


def _serve():
    for name in MODULES:
        importlib.import_module(name)
    usual = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [folder for folder in sys.path[1:] if folder not in usual]
    gc.freeze()  # so that a kernel's end does not copy all of this memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            return _become(request, folders)
        print(pid, file=answers)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)
    return None


def _become(request, folders):
    """Make this process like a new one; return the code of the kernel."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = ["", *paths, *folders]
    sys.argv[:] = ["-c"]
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(request["output"], name).open("w") as file:
            os.dup2(file.fileno(), number)
    return compile(request["source"], "<string>", "exec")


if __name__ == "__main__":
    code = _serve()
    if code is not None:
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
