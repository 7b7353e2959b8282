"""Whether the basics work at all: start two ranks, run a cell, stop, open the panel in a browser.

``python tests/canary.py`` takes a quarter of a minute and runs before all other tests: if it fails,
hundreds of tests would fail after it, each at its time limit. It names the step that failed, with
the cause and the end of the log, and its exit status is 1. It needs no pytest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

TESTS = Path(__file__).parent
MARK = "WORKBENCH_CANARY"
"""An environment variable that all processes of this one inherit."""
LOG_LINES = 30
END_S = 8
"""How long it may take to report a failure and to end all processes."""
CELL = """
import torch
total = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum)
print("the sum is", float(total))
"""
OUTPUT = "[ranks 0-1] the sum is 3.0\n"


@dataclass
class Step:
    """A step of a sequence, with its time limit in seconds."""

    name: str
    limit_s: float
    run: Callable[[], None]


class Cluster:
    """Steps with two ranks."""

    def __init__(self) -> None:
        self.steps = [
            Step("start two ranks", 30, self.start),
            Step("run a cell with an allreduce", 10, self.run_cell),
            Step("stop the ranks", 10, self.stop),
        ]

    def start(self) -> None:
        import workbench as wb

        self._cluster = wb.Cluster(n=2).start()

    def run_cell(self) -> None:
        from workbench.cluster import TextSink

        sink = TextSink()
        self._cluster.run(CELL, sink=sink)
        if sink.text != OUTPUT:
            raise AssertionError(f"the cell has shown {sink.text!r} instead of {OUTPUT!r}")

    def stop(self) -> None:
        processes = [psutil.Process(rank.pid) for rank in self._cluster.ranks]
        self._cluster.stop()
        left = [process.pid for process in processes if process.is_running()]
        if left:
            raise AssertionError(f"after the stop there still are the processes {left}")


class Page:
    """Steps with a page of JupyterLab."""

    def __init__(self, home: Path) -> None:
        self._home = home / "lab"
        self.steps = [
            Step("start JupyterLab", 25, self.start),
            Step("open the panel in Chromium", 25, self.open_panel),
        ]

    def start(self) -> None:
        from tests.browser.server import LabServer

        (self._home / "notebooks").mkdir(parents=True)
        self._server = LabServer(self._home, self._home / "notebooks")

    def open_panel(self) -> None:
        from playwright.sync_api import expect, sync_playwright

        from tests.browser.conftest import QUIET, _executable
        from tests.browser.pages import SLOWEST_MS, Lab

        expect.set_options(timeout=0.4 * SLOWEST_MS)  # its message comes before the step's limit
        with sync_playwright() as playwright:
            executable = _executable(playwright.chromium)
            if executable is None and not os.environ.get("CI"):
                print("canary: there is no Chromium here, so no page is opened", flush=True)
                return
            browser = playwright.chromium.launch(executable_path=executable, args=list(QUIET))
            lab = Lab(browser.new_page(), self._server, "canary").open()
            lab.panel.open()
            expect(lab.panel.device("CPU")).to_be_visible()
            if lab.complaints:
                raise AssertionError("\n".join(lab.complaints))
            browser.close()
        self._server.stop()


@dataclass
class Sequence:
    """Steps that run one after another in a thread, next to other sequences."""

    steps: list[Step]
    factor: float
    current: Step | None = None
    deadline: float = float("inf")
    error: str = ""

    def __post_init__(self) -> None:
        from timers import InThread

        self.thread = InThread(self._run)

    def _run(self) -> None:
        for step in self.steps:
            began = time.monotonic()
            self.deadline = began + step.limit_s * self.factor
            self.current = step
            try:
                step.run()
            except BaseException:  # noqa: BLE001 - whatever it is, it is reported
                self.error = traceback.format_exc()
                return
            print(f"canary: {step.name}: {time.monotonic() - began:.1f} s", flush=True)
        self.deadline = float("inf")

    def failure(self) -> str:
        """Return why the current step has failed; an empty text if it has not."""
        if self.error or time.monotonic() < self.deadline:
            return self.error
        stack = sys._current_frames().get(self.thread.thread.ident)
        where = "".join(traceback.format_stack(stack)) if stack is not None else ""
        return (
            f"It has not ended after {self.current.limit_s * self.factor:g} s. It is here:\n{where}"
        )


def main() -> int:
    """Run all steps; return the exit status."""
    sys.path[:0] = [str(TESTS.parent), str(TESTS / "support")]
    from timers import LIMITS_FACTOR

    home = Path(tempfile.mkdtemp(prefix="canary-"))
    use_folder(home)
    os.environ[MARK] = secrets.token_hex(8)
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
    parts = [Cluster().steps, Page(home).steps]
    # Also where a thread holds the interpreter's lock for ever.
    longest_s = max(sum(step.limit_s for step in steps) for steps in parts)
    faulthandler.dump_traceback_later(longest_s * LIMITS_FACTOR + END_S, exit=True)
    try:
        return watch([Sequence(steps, LIMITS_FACTOR) for steps in parts], home)
    finally:
        end_processes()
        shutil.rmtree(home, ignore_errors=True)


def use_folder(home: Path) -> None:
    """Have all files of this process and of its children in one folder, logs included."""
    variables = {
        "GRADIENT_WORKBENCH_RUNS": "runs",
        "JUPYTER_RUNTIME_DIR": "run",
        "TMPDIR": "tmp",
        "XDG_STATE_HOME": "state",
    }
    for variable, name in variables.items():
        (home / name).mkdir()
        os.environ[variable] = str(home / name)
    tempfile.tempdir = os.environ["TMPDIR"]


def watch(sequences: list[Sequence], home: Path) -> int:
    """Wait until all sequences have ended, or one has failed; return the exit status."""
    while any(sequence.thread.is_alive() for sequence in sequences):
        if any(sequence.failure() for sequence in sequences):
            break
        time.sleep(0.05)
    failed = [sequence for sequence in sequences if sequence.failure()]
    for sequence in failed:
        print(f"\ncanary: FAILED: {sequence.current.name}\n{sequence.failure()}", flush=True)
    if failed:
        print_logs(home)
    return 1 if failed else 0


def print_logs(home: Path) -> None:
    """Print the end of every log: of JupyterLab, of the cluster's controller and of its ranks."""
    for log in sorted(home.rglob("*.log")):
        with contextlib.suppress(OSError):
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            print(f"\ncanary: the end of {log.relative_to(home)}:", *lines, sep="\n", flush=True)


def end_processes() -> None:
    """End what this process has started and has not ended itself."""
    deadline = time.monotonic() + END_S / 2
    while (processes := marked()) and time.monotonic() < deadline:
        for process in processes:  # until there is none: each may start another one before its end
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=0.5)


def marked() -> list[psutil.Process]:
    """Return the other processes that have inherited the mark."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = process.environ().get(MARK) == os.environ[MARK]
            if is_marked and process.pid != os.getpid():
                processes.append(process)
    return processes


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a thread that hangs keeps no process alive
