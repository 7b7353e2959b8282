"""Cells on ranks of this machine: where they run, what they show, what they give."""

import os
import re

import pytest
from clusters import quiet, waiting_for
from timers import FAR_S, when

import workbench as wb
from workbench.cluster import TextSink, ValueNotSent
from workbench.errors import (
    RanksFailed,
    UsageError,
)


def test_names_in_the_namespace(cluster):
    """Every rank has rank, local_rank, world_size, device and hvd."""
    result = quiet(cluster, "(rank, local_rank, world_size, str(device), hvd.size())")
    assert result.values == {0: (0, 0, 2, "cpu", 2), 1: (1, 1, 2, "cpu", 2)}


@pytest.mark.usefixtures("usual_threads")
def test_ranks_share_the_cores():
    """They use all of the machine's cores, and no more, between them."""
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    with wb.Cluster(n=2) as cluster:
        threads = quiet(cluster, "import torch; torch.get_num_threads()").values
        assert threads == {0: share, 1: share}
        assert [info.threads for info in cluster.ranks] == [share, share]


def test_ranks_are_distinguished(cluster):
    """`ranks` names each rank's VM and process."""
    pids = quiet(cluster, "import os; os.getpid()").values
    assert {info.rank: info.pid for info in cluster.ranks} == pids
    assert {info.state for info in cluster.ranks} == {"ready"}


def test_no_key_is_in_a_rank_s_environment(cluster):
    """A process that a cell starts inherits nothing that would let it into the cluster."""
    source = "import os; sorted(name for name in os.environ if name.startswith('IPP'))"
    assert set(map(tuple, quiet(cluster, source).values.values())) == {()}


def test_a_subset_of_ranks(cluster):
    """A cell runs only where it was sent."""
    assert quiet(cluster, "rank", ranks="1").values == {1: 1}
    assert quiet(cluster, "rank", ranks=[0]).values == {0: 0}
    assert quiet(cluster, "rank", ranks="0-1").values == {0: 0, 1: 1}


@pytest.mark.parametrize("ranks", ["2", "0-5", "x", "", "1-0", "-1"])
def test_ranks_that_do_not_exist(cluster, ranks):
    """Asking for a rank that is not there says which there are."""
    with pytest.raises(UsageError, match=r"^ranks '.*': .*\.$"):
        quiet(cluster, "rank", ranks=ranks)


def test_output_is_folded_and_streamed(cluster, tmp_path):
    """Equal lines appear once while the cell still runs, which ends when the first has come."""
    mark, sink = tmp_path / "mark", TextSink()
    waiter = when(lambda: "first" in sink.text, mark.touch)
    source = f"print('first')\n{waiting_for(mark)}print('second of', rank)"
    result = cluster.run(source, sink=sink, timeout=FAR_S)
    waiter.join()
    assert result.output.splitlines()[0] == "[ranks 0-1] first"
    assert sorted(result.output.splitlines()[1:]) == [
        "[rank 0] second of 0",
        "[rank 1] second of 1",
    ]


def test_every_line_of_a_flood_arrives(cluster):
    """Ten thousand lines of each rank are all there."""
    result = quiet(cluster, "for i in range(10_000): print(i if i % 2 else (i, rank))")
    folded = re.findall(r"^\[ranks 0-1\] \d+$", result.output, re.MULTILINE)
    own = re.findall(r"^\[rank [01]\] \(\d+, [01]\)$", result.output, re.MULTILINE)
    assert len(own) == 10_000
    # folding is an economy, not a promise; that nothing is lost is one
    assert (
        2 * len(folded) + len(re.findall(r"^\[rank [01]\] \d+$", result.output, re.MULTILINE))
        == 10_000
    )


def test_stderr_and_threads_are_heard(cluster):
    """Text on stderr, or printed by a thread of the cell, belongs to the output."""
    source = """
import sys, threading
print("to stderr", file=sys.stderr)
thread = threading.Thread(target=print, args=("from a thread",)); thread.start(); thread.join()
"""
    output = quiet(cluster, source).output
    said = [line.partition("] ")[2] for line in output.splitlines()]
    assert set(said) == {"to stderr", "from a thread"}


def test_values(cluster):
    """The last expression comes back by rank; a semicolon hides but does not lose it."""
    assert quiet(cluster, "rank * 10").values == {0: 0, 1: 10}
    result = quiet(cluster, "rank * 10;")
    assert result.output == ""
    assert quiet(cluster, "x = 1").values == {0: None, 1: None}


def test_a_value_that_cannot_travel_says_so(cluster):
    """A value that cannot be pickled stays, with the reason."""
    value = quiet(cluster, "lambda: rank").values[0]
    assert isinstance(value, ValueNotSent)
    assert "pickle" in value.reason


def test_push_and_pull(cluster):
    """Names travel both ways."""
    cluster["numbers"] = [1, 2]
    quiet(cluster, "numbers.append(rank)")
    assert cluster["numbers"] == [[1, 2, 0], [1, 2, 1]]
    with pytest.raises(UsageError, match="nowhere"):
        cluster["nowhere"]


def test_cells_see_ipython(cluster):
    """Magics and shell commands work in a cell as in a notebook."""
    assert "[ranks 0-1] shell" in quiet(cluster, "!echo shell").output
    assert "Wall time" in quiet(cluster, "%time sum(range(10))").output


def test_top_level_await(cluster):
    """A cell may await, as in a notebook."""
    source = "import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.sleep(0.01, result=rank)"
    assert quiet(cluster, source).values == {0: 0, 1: 1}


def test_in_the_background(cluster, tmp_path):
    """A cell in the background leaves the caller free; its result comes later."""
    sink = TextSink()
    future = cluster.run_in_background(f"{waiting_for(tmp_path / 'mark')}rank", sink=sink)
    assert not future.done()
    (tmp_path / "mark").touch()
    assert future.result(timeout=FAR_S).values == {0: 0, 1: 1}
    assert sink.text == "[rank 0] 0\n[rank 1] 1\n" or sink.text == "[rank 1] 1\n[rank 0] 0\n"


def test_calibration_predicts_what_it_measured(cluster):
    """The fitted line grows with size; an allreduce takes time even when it is empty."""
    fabric = cluster.calibrate(seconds=2)
    assert fabric.n == 2
    assert fabric.predict_us(1 << 24) > fabric.predict_us(1 << 12) > 0
    assert fabric.busbw_gbps > 0


def test_cells_in_the_background_take_turns(cluster):
    """Queued cells run in order; a failure of the first does not spoil the second."""
    sinks = [TextSink() for _ in range(3)]
    sources = [
        "import torch, time; time.sleep(0.3)\nif rank: 1/0\nhvd.allreduce(torch.ones(1))",
        "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))",
        "rank",
    ]
    futures = [
        cluster.run_in_background(source, sink=sink)
        for source, sink in zip(sources, sinks, strict=True)
    ]
    with pytest.raises(RanksFailed, match="ZeroDivisionError"):
        futures[0].result(timeout=FAR_S)
    assert futures[1].result(timeout=FAR_S).values == {0: 2.0, 1: 2.0}
    assert futures[2].result(timeout=FAR_S).values == {0: 0, 1: 1}


@pytest.mark.soak
def test_two_streams_in_turn_lose_nothing(cluster):
    """A cell that changes between stdout and stderr at every line has every line shown."""
    source = """
import sys
for i in range(30_000):
    print(f"out {i} {rank}"); print(f"err {i} {rank}", file=sys.stderr)
"""
    said = re.findall(r"(?:out|err) \d+ [01]", quiet(cluster, source).output)
    assert len(said) == len(set(said)) == 2 * 2 * 30_000


def test_a_logger_of_an_earlier_cell_is_heard(cluster):
    """A handler that keeps the first cell's stderr still shows in the second cell."""
    quiet(cluster, "import logging, sys\nlog = logging.getLogger('mine')\n"
                   "log.addHandler(logging.StreamHandler())\nlog.setLevel('INFO')")  # fmt: skip
    assert "[ranks 0-1] again" in quiet(cluster, "log.info('again')").output


def test_what_is_written_past_python_is_heard(cluster):
    """Subprocesses, the C level and forked workers show in the cell's output."""
    source = """
import os, subprocess
subprocess.run(["echo", "from a subprocess"], check=True)
os.write(2, b"from the C level\\n")
if os.fork() == 0:
    print("from a fork", flush=True)
    os._exit(0)
os.wait();
"""
    said = [line.partition("] ")[2] for line in quiet(cluster, source).output.splitlines()]
    assert set(said) == {"from a subprocess", "from the C level", "from a fork"}
