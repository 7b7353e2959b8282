"""Profiles of real ranks: their operators, phases and collectives in one trace, on one clock."""

import math
import re

import numpy as np
import pytest
import traces
from clusters import quiet
from timers import FAR_S, PROCESS_S, InThread, eventually, when

import workbench as wb
from workbench.errors import UsageError

ROUNDS = """
import os, time, torch
from time import perf_counter_ns
from torch.profiler import record_function
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
{wrap}
square, spent = torch.ones(200, 200), []
def train(n):
    for number in range(n):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 256)).sum()
        began = perf_counter_ns()
        with record_function("planted"):
            torch.mm(square, square)
        spent.append((began, perf_counter_ns()))
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
"""
HOROVOD = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
"""
DDP = """
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
MS = 1e6


@pytest.fixture(scope="module")
def ddp():
    with wb.Cluster(2, backend="ddp") as found:
        yield found


@pytest.fixture(params=["horovod", "ddp"])
def trains(request):
    """A cluster of each backend, with a model on its ranks."""
    cluster = request.getfixturevalue("ddp" if request.param == "ddp" else "cluster")
    quiet(cluster, ROUNDS.format(wrap=DDP if request.param == "ddp" else HOROVOD))
    return cluster


def training_until(path, cluster):
    """A cell's beginning, in which the ranks train until one of them has seen a file."""
    source = (
        f"while True:\n    train(5)\n    e = torch.tensor(float(os.path.exists({str(path)!r})))\n"
    )
    dist = cluster.options.backend == "ddp"
    source += "    dist.all_reduce(e)\n" if dist else "    e = hvd.allreduce(e)\n"
    return source + "    if e.item(): break\n"


def test_a_request_that_is_cancelled(cluster):
    """The live view, which reads the state in its own thread, then shows no profile."""
    cluster.profile(20).cancel()
    assert (cluster.profiling.state, cluster.profiling.latest) == ("none", None)
    first, second = cluster.profile(20), cluster.profile(20)
    assert first.cancelled()
    assert cluster.profiling.state == "waiting"
    second.cancel()


def operators(trace, name):
    """The slices of an operator by rank, in order, as pairs of nanoseconds in the trace."""
    found = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["name"] == name:
            found.setdefault(event["pid"], []).append(traces.nanoseconds(event))
    return {rank: sorted(times) for rank, times in found.items()}


def test_planted_operators_are_where_the_ranks_ran_them(trains):
    """On both ranks, each within 1 ms, and within the iteration of our own timings."""
    ended = trains.profile(iterations=12)
    assert trains.profiling.state == "waiting"
    quiet(trains, "train(30)")
    profile = ended.result(FAR_S)
    assert trains.profiling.state == "done"
    trace = traces.read(profile.path)
    traces.check_format(trace)
    assert profile.path.stat().st_mode & 0o777 == 0o600
    assert profile.ranks == (0, 1)
    planted, truth = operators(trace, "planted"), trains.pull(["spent"])
    rows = trains.timings.rows()
    first = rows[(rows["iteration"] == profile.first_iteration) & (rows["rank"] == 0)]
    own = traces.slices(trace, "iteration")
    begin = min(traces.nanoseconds(one)[0] for one in own if one["pid"] == 0)
    origin = int(first["start_ns"][0]) - begin
    for rank in (0, 1):
        assert len(planted[rank]) == 12
        ran = np.array(truth[rank]["spent"])
        iterations = [traces.nanoseconds(one) for one in own if one["pid"] == rank]
        late = []
        for start, end in planted[rank]:
            # the cell's own times, around the operator: a busy machine may delay them
            before, after = ran[:, 0] - origin, ran[:, 1] - origin
            (place,) = np.flatnonzero((before <= start + MS) & (end - MS <= after))
            late.append((start - before[place], after[place] - end))
            inside = [one for one in iterations if one[0] <= start and end <= one[1]]
            assert len(inside) == 1
        assert np.min(late) > -MS / 10
        assert np.abs(np.median(late, axis=0)).max() < MS
    assert profile.uncertainty_us < 1000
    assert profile.profiled_us > 0
    assert not math.isnan(profile.usual_us)


def test_collectives_of_the_profiler_and_ours_agree(ddp):
    """Each all-reduce that PyTorch has recorded begins within one that we have, within 1 ms.

    It usually ends with it. PyTorch notes the end after it has said that the result is there, and
    the thread may have lost its core in between.
    """
    quiet(ddp, ROUNDS.format(wrap=DDP))
    ended = ddp.profile(iterations=8)
    quiet(ddp, "train(20)")
    trace = traces.read(ended.result(FAR_S).path)
    theirs = operators(trace, "gloo:all_reduce")
    for rank in (0, 1):
        ours = [
            traces.nanoseconds(one)
            for one in traces.slices(trace, "collective")
            if one["pid"] == rank
        ]
        assert len(theirs[rank]) >= 7
        later = []
        for start, end in theirs[rank]:
            (done,) = [done for begin, done in ours if begin - MS <= start < done]
            later.append(end - done)
        assert np.median(later) <= MS


def test_profiled_iterations_are_marked_and_left_out(trains, tmp_path):
    """Of the summary, which says so; explanations go on. The trace marks them too."""
    stop = tmp_path / "stop"
    ended = trains.profile(iterations=5)
    waiter = when(ended.done, stop.touch)
    quiet(trains, training_until(stop, trains) + "train(20)\n", timeout=PROCESS_S)
    waiter.join()
    trace = traces.read(ended.result(FAR_S).path)
    for kind, least in (("iteration", 2 * 5), ("phase", 2 * 5 * 3)):
        found = [one for one in traces.slices(trace, kind) if "profiled" in one["args"]]
        assert len(found) >= least
    rows = trains.timings.rows()
    rows = rows[rows["cell"] == rows["cell"].max()]
    iterations = np.unique(rows["iteration"])
    marked = np.unique(rows["iteration"][rows["flags"] & 256 != 0])
    assert len(marked) >= 6
    assert marked.max() < iterations[-15]  # the last 20 were not profiled, but for the first few
    summary = trains.timings.summary(len(iterations))
    assert summary.profiled == len(marked)
    assert summary.iterations == len(iterations) - len(marked) - 1
    wb.explain(trains)


def test_running_cell_is_profiled(trains, tmp_path):
    """In the middle of a cell, from another thread; the cell goes on."""
    stop = tmp_path / "stop"
    cell = InThread(quiet, trains, training_until(stop, trains))
    try:
        assert eventually(lambda: trains.state == "running")
        profile = trains.profile(0.3).result(FAR_S)
        assert trains.state == "running"
    finally:
        stop.touch()
        cell.join()
    assert profile.seconds >= 0.3
    assert {"planted"} <= {one["name"] for one in traces.read(profile.path)["traceEvents"]}


def test_a_profile_that_needs_much_memory_ends_early(cluster):
    """It says how long it has lasted, and why."""
    quiet(cluster, ROUNDS.format(wrap=HOROVOD))
    most = "import workbench.rank.profiler\nworkbench.rank.profiler.MAX_MEMORY_BYTES = "
    quiet(cluster, f"{most}-(10**9)")  # a rank may have free memory
    ended = cluster.profile(20)
    quiet(cluster, "train(300)")
    profile = ended.result(FAR_S)
    quiet(cluster, f"{most}512_000_000")
    assert profile.seconds < 20
    lasted = [float(re.search(r"It ended after ([\d.]+) s", text)[1]) for text in profile.notes]
    assert lasted == pytest.approx([profile.seconds] * len(lasted), abs=0.5)
    assert all("the memory of the rank had grown by" in text for text in profile.notes)


def test_cell_that_ends_earlier_yields_what_there_is(trains):
    """With a note."""
    ended = trains.profile(60)
    quiet(trains, "train(12)")
    profile = ended.result(FAR_S)
    assert "The cell ended before the profile." in " ".join(profile.notes)
    assert operators(traces.read(profile.path), "planted").keys() == {0, 1}


def test_profiler_of_the_cell_is_not_broken(trains):
    """Ours ends when that begins, and does not begin while it runs."""
    own = "from torch.profiler import profile\n"
    ended = trains.profile(60)
    found = trains.run(f"{own}train(6)\nwith profile() as p: train(3)\nlen(p.events())").values
    assert min(found.values()) > 30
    assert "It ended when that one began." in " ".join(ended.result(FAR_S).notes)
    ended = trains.profile(60)
    found = trains.run(f"{own}with profile() as p: train(8)\nlen(p.events())").values
    assert min(found.values()) > 80
    with pytest.raises(UsageError, match="The cell uses PyTorch's profiler"):
        ended.result(FAR_S)


@pytest.mark.soak
def test_lost_rank_leaves_the_profile_of_the_others():
    """With a note about the lost one."""
    with wb.Cluster(2) as cluster:
        quiet(cluster, ROUNDS.format(wrap=HOROVOD))
        ended = cluster.profile(60)
        with pytest.raises(wb.RanksFailed):
            quiet(cluster, "train(10)\nif rank == 1: os._exit(3)\ntrain(10)")
        profile = ended.result(FAR_S)
        assert profile.ranks == (0,)
        assert "rank 1: It was lost" in " ".join(profile.notes)


def test_a_profile_that_cannot_be_is_refused(trains):
    """With what to do."""
    for given in ({"seconds": 61}, {"seconds": 0}, {"iterations": 0}, {"seconds": "x"}):
        with pytest.raises(UsageError):
            trains.profile(**given)
    trains.recording = False
    try:
        with pytest.raises(UsageError, match="%timings on"):
            trains.profile(1)
    finally:
        trains.recording = True


@pytest.mark.soak
def test_interrupt_while_a_profile_stops_leaves_no_profiler_on(cluster):
    """It is raised after the profiler has stopped; the next profile works."""
    quiet(cluster, ROUNDS.format(wrap=HOROVOD))
    plant = """
import signal
from torch.autograd import profiler as module
usual = module._disable_profiler
def interrupted():
    module._disable_profiler = usual
    signal.raise_signal(signal.SIGINT)
    return usual()
module._disable_profiler = interrupted
"""
    ended = cluster.profile(iterations=4)
    with pytest.raises(wb.RanksFailed, match="KeyboardInterrupt"):
        quiet(cluster, plant + "train(30)")
    ended.result(FAR_S)
    again = cluster.profile(iterations=4)
    quiet(cluster, "train(30)")
    assert again.result(FAR_S).ranks == (0, 1)


@pytest.mark.parametrize("broken", ["_is_profiler_enabled", "record_function"])
def test_a_profiler_that_fails_does_not_fail_the_cell(trains, broken):
    """Such as one of another version of PyTorch; the profile says why, and the next one works."""
    ended = trains.profile(iterations=60)
    cell = f"""
from torch.autograd import profiler as module
kept = module.{broken}
del module.{broken}
"""
    restored = f"module.{broken} = kept"
    if broken == "_is_profiler_enabled":
        quiet(trains, f"{cell}train(12)\n{restored}")
    else:  # at the end of the cell, which stops the profile
        quiet(trains, f"train(12)\n{cell}")
        quiet(trains, restored)
    with pytest.raises(UsageError, match=f"failed: .*{broken}"):
        ended.result(FAR_S)
    again = trains.profile(iterations=4)
    quiet(trains, "train(30)")
    assert again.result(FAR_S).ranks == (0, 1)


def test_training_in_another_thread_is_refused(cluster):
    """The end of the cell could not stop the profiler; the next profile works."""
    quiet(cluster, ROUNDS.format(wrap=HOROVOD))
    ended = cluster.profile(iterations=4)
    thread = "import threading\nt = threading.Thread(target=train, args=(12,))\n"
    quiet(cluster, f"{thread}t.start()\nt.join()")
    with pytest.raises(UsageError, match="another thread"):
        ended.result(FAR_S)
    again = cluster.profile(iterations=4)
    quiet(cluster, "train(30)")
    assert again.result(FAR_S).ranks == (0, 1)
