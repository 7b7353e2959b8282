"""Mistakes in a cell whose usual messages mislead, or have a line for each rank."""

import pytest
from clusters import quiet
from timers import FAR_S

from workbench.advisor.verdict import verdict
from workbench.cluster import TextSink
from workbench.errors import RanksFailed
from workbench.timings.figures import typical
from workbench.timings.store import last_cell

MAX_LINES = 15
"""What an explained error may take."""


def failure(cluster, source):
    """The text of a failed cell's error, after a check that the ranks can continue."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, source, timeout=FAR_S)
    assert quiet(cluster, "1 + 1").values == dict.fromkeys(range(cluster.n), 2)
    return str(caught.value)


def test_an_error_with_the_rank_in_it_is_shown_once(clean_cluster):
    """The list of the numbers follows the traceback, and each rank's own error is kept."""
    source = (
        "def check(x):\n"
        "  try: return x / 0\n"
        "  except ZeroDivisionError as e: raise ValueError(f'rank {rank}: no data, {e!r}') from e\n"
        "check(1)"
    )
    with pytest.raises(RanksFailed) as caught:
        quiet(clean_cluster, source)
    text = str(caught.value)
    assert text.startswith("[ranks 0-1] ValueError: rank <rank>: no data, ZeroDivisionError")
    assert text.count("in check") == 2  # of the error and of its cause
    assert "\n[ranks 0-1] differing parts: <rank> = 0, 1" in text
    messages = {rank: error.message[:7] for rank, error in caught.value.errors.items()}
    assert messages == {0: "rank 0:", 1: "rank 1:"}


def test_errors_about_a_number_that_equals_the_rank_are_two(clean_cluster):
    """A loss is not the rank's number."""
    text = failure(clean_cluster, "raise ValueError(f'loss {rank} is invalid')")
    assert "[rank 0] ValueError: loss 0" in text
    assert "[rank 1] ValueError: loss 1" in text


def test_a_worker_of_a_loader_that_fails(clean_cluster):
    """Its traceback names the cell's file, which has no process id in it."""
    text = failure(
        clean_cluster,
        "import torch\n"
        "class Bad(torch.utils.data.Dataset):\n"
        "  def __len__(self): return 8\n"
        "  def __getitem__(self, i): raise KeyError('column price is missing')\n"
        "for _ in torch.utils.data.DataLoader(Bad(), num_workers=1): pass",
    )
    assert text.startswith("[ranks 0-1] KeyError: Caught KeyError in DataLoader worker process 0")
    assert "\n[rank" not in text


def test_warnings_are_shown_once_with_what_differs_below(clean_cluster):
    """Warnings, log lines and printed tracebacks of two processes."""
    sink = TextSink()
    clean_cluster.run(
        "import os, sys, traceback, warnings\n"
        "warnings.warn(f'[rank {rank}] careful')\n"
        "print(f'WARNING:root:pid {os.getpid()} is slow', file=sys.stderr)\n"
        "try: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()",
        sink=sink,
    )
    lines = sink.text.splitlines()
    assert all(line.startswith("[ranks 0-1]") for line in lines), sink.text
    assert sum("careful" in line for line in lines) == 2  # the warning and its line of source
    assert "WARNING:root:pid <process id> is slow" in sink.text
    pids = ", ".join(str(info.pid) for info in clean_cluster.ranks)
    assert f"<rank> = 0, 1; <process id> = {pids}" in lines[-1]


def test_elastic_training(clean_cluster):
    """It needs a driver, which is not the network's fault."""
    text = failure(
        clean_cluster,
        "@hvd.elastic.run\ndef train(state): pass\n"
        "import torch\n"
        "train(hvd.elastic.TorchState(model=torch.nn.Linear(2, 2), optimizer=None))",
    )
    assert "[ranks 0-1] RuntimeError: hvd.elastic.run: the function was not called" in text
    assert "Call the function without the decorator" in text
    assert "KVStore" not in text
    assert len(text.splitlines()) < MAX_LINES


@pytest.mark.parametrize("call", ["allgather", "broadcast"])
def test_a_collective_after_another_rank_has_joined(clean_cluster, call):
    """The rank that made the mistake is named, and what Horovod cannot do."""
    arguments = "torch.ones(2)" + ", 0" * (call == "broadcast")
    text = failure(
        clean_cluster, f"import torch\nif rank == 0: hvd.{call}({arguments})\nhvd.join()"
    )
    first = text.splitlines()[0]
    assert first.startswith(f"[rank 0] HorovodInternalError: hvd.{call} was called while another")
    assert "on all ranks before the first of them calls hvd.join()" in first
    assert "[rank 1] freed from a collective" in text
    assert len(text.splitlines()) < MAX_LINES


def test_a_spawned_process_that_needs_a_cells_function(clean_cluster):
    """No process starts, so that there are no tracebacks of processes."""
    sink = TextSink()
    with pytest.raises(RanksFailed) as caught:
        clean_cluster.run(
            "import torch.multiprocessing as mp\ndef work(i): pass\nmp.spawn(work, nprocs=2)",
            sink=sink,
            timeout=FAR_S,
        )
    text = str(caught.value)
    assert "the new process needs work, which is defined in a cell" in text
    assert "%%writefile" in text
    assert len(text.splitlines()) + len(sink.text.splitlines()) < MAX_LINES


def test_what_a_spawned_process_can_import_runs(clean_cluster):
    """Functions of modules, with arguments that no cell has defined."""
    source = (
        "import multiprocessing, math\n"
        "process = multiprocessing.get_context('spawn').Process(target=math.sqrt, args=(4,))\n"
        "process.start()\nprocess.join()\nprocess.exitcode"
    )
    assert quiet(clean_cluster, source, timeout=FAR_S, ranks="0").values == {0: 0}


def test_a_model_is_wrapped_again_after_a_cell_that_failed(clean_cluster):
    """Hooks of the first optimizer end with the frames of the failed cell."""
    setup = "import torch\nmodel = torch.nn.Linear(4, 1)\n"
    train = (
        "def train(fail):\n"
        "  sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "  optimizer = hvd.DistributedOptimizer(sgd)\n"
        "  for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    if fail: raise ValueError('planted')\n"
        "    optimizer.step()\n"
    )
    with pytest.raises(RanksFailed, match="planted"):
        quiet(clean_cluster, f"{setup}{train}train(True)")
    assert quiet(clean_cluster, "train(False)\n1", timeout=FAR_S).values == {0: 1, 1: 1}


def test_cells_with_one_step_are_one_training(clean_cluster):
    """All of them are explained, and only the first iteration of the first cell is a warm-up."""
    quiet(
        clean_cluster,
        "import torch, time\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "def step():\n  optimizer.zero_grad()\n  model(torch.ones(2, 4)).sum().backward()\n"
        "  if rank == 1: time.sleep(0.02)\n  optimizer.step()\n"
        "for _ in range(3): step()",
    )
    for _ in range(12):
        quiet(clean_cluster, "step()")
    explained = verdict(clean_cluster)
    assert explained.last_iteration - explained.first_iteration == 11
    rows = last_cell(clean_cluster.timings.rows())
    assert len(typical(rows)) == 2 * 11
