"""Helpers for tests of clusters: quiet cells, trainings, and processes that end."""

import contextlib
import os
import re
import secrets
from pathlib import Path

import psutil
from timers import FAR_S, LIMITS_FACTOR, when, within

from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, RanksFailed


def quiet(cluster, source, **options):
    """Run a cell whose output nobody sees."""
    return cluster.run(source, sink=TextSink(), **options)


WARM = "workbench.agent.warm"
"""In the command of the warm process, which outlives clusters."""


def children(word=""):
    """The processes of this one that still run, with a word of their command.

    Those of the warm process count as well; it counts itself only if the word is in its command.
    """
    direct = [one for one in psutil.Process().children() if _command(one)]
    warm = [one for one in direct if WARM in _command(one)]
    forked = [one for parent in warm for one in _children(parent) if _command(one)]
    if word:
        return [one for one in [*direct, *forked] if word in _command(one)]
    return [one for one in [*direct, *forked] if one not in warm]


def _children(process):
    """The processes of another one; empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def _command(process):
    """The command of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def own_processes():
    """The ids of all processes that this one has started, and of theirs, but the warm process.

    Processes that have ended do not count.
    """
    commands = {one.pid: _command(one) for one in psutil.Process().children(recursive=True)}
    return {pid for pid, command in commands.items() if command and WARM not in command}


def gone(pids, seconds=FAR_S):
    """Whether all processes end within some seconds; a later process may have the id of one."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return within(seconds, lambda: not any(process.is_running() for process in processes))


def with_support():
    """The environment of a kernel that imports what tests share."""
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}


class BeginSink(TextSink):
    """Keeps the output of a cell, and knows when the cell has begun on every rank.

    The cell is to begin with `PRINT`.
    """

    PRINT = "print('begun')\n"

    def begun(self, ranks=2):
        """Whether so many ranks have begun."""
        labels = ",".join(re.findall(r"\[ranks? ([\d,-]+)\] begun", self.text)).split(",")
        ends = [[int(end) for end in label.split("-")] for label in labels if label]
        return sum(end[-1] - end[0] + 1 for end in ends) >= ranks


CELL_S = 100.0 * LIMITS_FACTOR
"""A cell's time limit: only what nobody ends takes as long."""


class Cell:
    """A cell that is run to its end, and something that is done when it shows a text.

    The cell may call ``held()``, which waits until that was done.

    Parameters
    ----------
    text
        A regular expression; the output must contain it.

    Attributes
    ----------
    output, error
        What the cell has shown, and its error or an empty text.
    """

    def __init__(self, cluster, source, text, action=lambda: None):
        sink, shown = TextSink(), Path(os.environ["GRADIENT_WORKBENCH_RUNS"]) / secrets.token_hex(4)
        held = f"def held():\n    while not os.path.exists({str(shown)!r}): time.sleep(0.02)\n"

        def follow():
            action()
            shown.touch()

        waiter = when(lambda: re.search(text, sink.text), follow)
        self.error = ""
        try:
            cluster.run(held + source, sink=sink, timeout=CELL_S)
        except (RanksFailed, CellInterrupted) as error:
            self.error = str(error)
        finally:
            waiter.join()
        self.output = sink.text
        assert re.search(text, self.output), self.output + self.error


def waiting_for(mark):
    """A cell's beginning that goes on once there is a file."""
    return f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(0.05)\n"


SHARED_MODEL = """
import contextlib, os, tempfile, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
if not dist.is_initialized():
    where = tempfile.mktemp(dir=os.environ.get("GRADIENT_WORKBENCH_RUNS"))  # removed by pytest
    where = hvd.broadcast_object(where, name="where")
    dist.init_process_group(
        "gloo", init_method=f"file://{where}", rank=rank, world_size=world_size)
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
"""
"""A cell's beginning: PyTorch's process group next to Horovod's, and a small model."""

TRAINING = """
import torch
model = torch.nn.Linear({width}, {width})
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(4, {width})).sum().backward()
        optimizer.step()
train({iterations})
"""


def training(iterations, width=8):
    """A plain Horovod script, of two tensors; `train` is there afterwards."""
    return TRAINING.format(width=width, iterations=iterations)


QUEUED = """
import glob
def queued_us():
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path) as file: total += int(file.read().split()[1])
        except OSError: pass  # a thread that has ended
    return total / 1e3
"""
"""A cell's beginning: for how long this rank's threads were ready and had no core, so far."""
