"""Waits in calls of torch.distributed."""

import re

import pytest
from clusters import CELL_S, Cell, quiet

from workbench.errors import RanksFailed


def test_batch_counts_differ(ranks):
    """The ranks that wait for one that has ended the cell are freed, with the reason."""
    source = "for batch in range(4 + rank): dist.all_reduce(torch.ones(1))"
    with pytest.raises(RanksFailed, match=r"rank 0 ended the cell while .* wait") as caught:
        quiet(ranks, source, timeout=60)
    assert "Join([model])" in str(caught.value)


@pytest.mark.parametrize(
    ("waits", "name"),
    [
        ("dist.recv(torch.ones(1), 1)", "recv(src=1) 1"),
        ("dist.irecv(torch.ones(1), 1).wait()", "recv(src=1) 1"),
        ("dist.monitored_barrier()", "monitored_barrier()"),
    ],
)
def test_a_missing_peer(ranks, waits, name):
    """A call that the Flight Recorder lacks is named, and freed when its peer has failed."""
    quiet(ranks, "dist.destroy_process_group()")  # receives are numbered in each ring
    source = f"if rank == 1: held(); raise ValueError('boom')\nif rank == 0: {waits}"
    cell = Cell(ranks, source, re.escape(f"[rank 0] in {name!r}"))
    assert "[rank 1] ValueError: boom" in cell.error
    assert "[rank 0] freed from a collective" in cell.error


@pytest.mark.soak
def test_a_wait_for_something_else(ranks):
    """A cell of one rank that waits for a thread of its own needs no other rank."""
    source = """
import threading, torch
future = torch.futures.Future()
threading.Timer(5, future.set_result, [7]).start()
future.wait()
"""
    assert quiet(ranks, source, ranks=[0], timeout=60).values == {0: 7}


FOUND = """
import threading
from workbench.rank.backends import torch_waits
main, calls, done = threading.main_thread().ident, [], threading.Event()
def watch(paths):
    while paths and not done.is_set():
        call = torch_waits.find(sys._current_frames()[main])
        # a receive is first seen in its start, or in its wait
        if call is not None and call.name and call.name not in [one.name for one in calls]:
            calls.append(call)
            open(paths.pop(0), "w").close()
def watched(wait, paths):
    watcher = threading.Thread(target=watch, args=(paths,))
    watcher.start()
    try:
        wait()
    finally:
        done.set()
        watcher.join()
    return [(call.name, call.ranks) for call in calls], len({call.began for call in calls})
def await_file(path):
    while not os.path.exists(path): time.sleep(0.01)
"""


def test_each_receive_is_a_wait_of_its_own(ranks, tmp_path):
    """It has begun when it was called, and needs its peer, which may be rank 0."""
    quiet(ranks, "dist.destroy_process_group()")
    paths = [str(tmp_path / name) for name in "ab"]
    values = quiet(
        ranks,
        FOUND
        + f"paths, result = {paths}, None\n"
        + "if rank == 1:\n"
        + "    result = watched(lambda: [dist.recv(torch.ones(1), 0) for _ in paths], [*paths])\n"
        + "elif rank == 0:\n"
        + "    for path in paths: await_file(path); dist.send(torch.ones(1), 1)\n"
        + "result",
        timeout=60,
    ).values
    assert values == {0: None, 1: ([(f"recv(src=0) {n}", (0, 1)) for n in (1, 2)], 2), 2: None}


@pytest.mark.soak
def test_receives_from_any_rank_are_numbered_too(ranks):
    """So that a later receive has the number of the send that its peer has started."""
    quiet(ranks, "dist.destroy_process_group()")
    source = """
if rank == 0: dist.send(torch.ones(1), 1)
if rank == 1: dist.recv(torch.ones(1)); dist.recv(torch.ones(1), 0)
if rank == 2: held(); raise ValueError('boom')
if rank == 0: dist.all_reduce(torch.ones(1))
"""
    cell = Cell(ranks, source, re.escape("[rank 1] in 'recv(src=0) 2'"))
    assert "[rank 2] ValueError: boom" in cell.error


def test_a_new_group_needs_its_ranks(ranks, tmp_path):
    """The others do not wait in it."""
    path = str(tmp_path / "a")
    values = quiet(
        ranks,
        FOUND
        + "def form(): dist.new_group([0, 1])\n"
        + f"if rank == 1: await_file({path!r}); form()\n"
        + "if rank == 2: form()\n"
        + f"watched(form, [{path!r}]) if rank == 0 else None",
        timeout=60,
    ).values
    assert values == {0: ([("new_group()", (0, 1))], 1), 1: None, 2: None}


@pytest.mark.soak
def test_ranks_that_go_on_are_not_freed(ranks):
    """Two ranks that send to each other all the time do not wait for one that has ended."""
    source = (
        "x = torch.zeros(1 << 18)\n"
        "end, more = time.monotonic() + 5, rank < 2\n"
        "while more:\n"
        "    if rank == 0:\n"
        "        x[0] = time.monotonic() < end\n"
        "        dist.send(x, 1)\n"
        "        dist.recv(x, 1)\n"
        "    else:\n"
        "        dist.recv(x, 0)\n"
        "        dist.send(x, 0)\n"
        "    more = bool(x[0])\n"
    )
    quiet(ranks, source, timeout=60)


def test_a_receive_of_what_nobody_has_sent(ranks):
    """The other rank has left an earlier send open, which does not count."""
    source = "work = dist.isend(torch.ones(4), 1) if rank == 0 else None\n"
    source += "if rank == 1:\n    for _ in range(2): dist.recv(torch.ones(4), 0)"
    says = r"rank 0 ended the cell while rank 1 waits in 'recv\(src=0\) \d+'"
    with pytest.raises(RanksFailed, match=says):
        quiet(ranks, source, timeout=CELL_S)


def test_one_rank_misses_a_new_group(ranks):
    """The same for a sub-group, whose members must all form it."""
    with pytest.raises(RanksFailed, match="boom") as caught:
        quiet(
            ranks,
            "if rank == 1: raise ValueError('boom')\ndist.new_group([0, 1, 2])",
            timeout=30,
        )
    assert list(caught.value.errors) == [1]


def test_one_rank_misses_the_collective_of_a_group(ranks):
    """Only its members are needed, and shown."""
    source = (
        "group = dist.new_group([0, 1])\nif rank == 1: held()\n"
        "if rank < 2: dist.all_reduce(torch.ones(1), group=group)"
    )
    cell = Cell(ranks, source, "Rank 1 is missing; it is at:")
    assert "[rank 0] in 'all_reduce 1'" in cell.output
    assert "ank 2" not in cell.output
