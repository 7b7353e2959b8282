"""`%explain` names the Python lines with time in no phase, of a cell that was sampled."""

import re
import threading
import time

import pytest
from clusters import SHARED_MODEL, quiet
from timers import eventually

from workbench.advisor import explain
from workbench.advisor.sampled import sampled_lines
from workbench.wire import Message
from workbench.wire.sample_messages import LineSamples, LineSamplesRequest

BEGIN = (
    SHARED_MODEL
    + """
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
m = net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(m.parameters(), lr=0.01), named_parameters=m.named_parameters())
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(m(inputs), targets).backward()
    optimizer.step()
"""
)
SLEEP = BEGIN + "for i in range(40):\n    step()\n    time.sleep(0.02)\ntime.sleep(1)\n"
AUGMENT = (
    BEGIN
    + """
def augment(count):
    values = list(range(1000))
    for _ in range(count):
        values = [(value * 31 + 7) % 1009 for value in values]
    return values
for i in range(40):
    augment(200)
    step()
"""
)


def line_of(source, text):
    """The number of the last line of a source that has a text."""
    return max(n for n, line in enumerate(source.strip().splitlines(), 1) if text in line)


def other(cluster):
    """What `explain` says of the time in no phase."""
    return next(one for one in explain(cluster) if one.name == "time in no phase (other)")


@pytest.mark.timing
def test_a_pause_is_named_with_its_line(cluster):
    """Not without being asked, then with the line of the cell; the pause after the loop is not."""
    quiet(cluster, SLEEP)
    before = other(cluster)
    assert "sampled" not in before.evidence
    assert "run %explain --sample, then the cell again" in before.change
    assert cluster.sample_lines() is False
    quiet(cluster, SLEEP)
    found = other(cluster)
    line = line_of(SLEEP, "time.sleep(0.02)")
    share = re.search(
        rf"sampled: (\d+)% in line {line} of the cell: time.sleep\(0\.02\)", found.evidence
    )
    assert share, found.evidence
    assert int(share[1]) >= 90
    assert "--sample" not in found.change
    quiet(cluster, SLEEP)  # the next cell is not sampled
    assert "sampled" not in other(cluster).evidence


@pytest.mark.soak
@pytest.mark.timing
def test_pure_python_in_the_loop_is_named_with_line_and_function(cluster):
    """An augmentation of the user's own, between a step and the next forward."""
    cluster.sample_lines()
    quiet(cluster, AUGMENT)
    found = other(cluster)
    line = line_of(AUGMENT, "% 1009")
    named = rf"sampled: (\d+)% in line {line} of the cell in augment\(\): values = \["
    share = re.search(named, found.evidence)
    assert share, found.evidence
    assert int(share[1]) >= 80


def test_a_module_of_the_users_own(cluster, tmp_path):
    """A line of another file is named with that file; what it calls in a library is its line."""
    (tmp_path / "augmenting.py").write_text(
        "import random, time\ndef slow():\n    random.sample(range(60_000), 30_000)\n"
    )
    cluster.sample_lines()
    quiet(
        cluster,
        f"{BEGIN}\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\nimport augmenting\n"
        "for i in range(20):\n    step()\n    augmenting.slow()\n",
    )
    assert re.search(
        r"line 3 of \S*augmenting\.py in slow\(\): random\.sample", other(cluster).evidence
    )


def test_a_running_cell_is_sampled_for_some_seconds(cluster):
    """In the background: the call returns after its time, and the cell goes on."""
    timings = cluster.timings
    earlier = timings.newest_cell
    run = cluster.run_in_background(SLEEP.replace("range(40)", "range(40_000)"))
    assert eventually(lambda: timings.newest_cell > earlier)
    assert eventually(lambda: timings.iterations_of(timings.newest_cell) > 5)
    began = time.monotonic()
    assert cluster.sample_lines(1.5) is True
    assert time.monotonic() - began >= 1.5
    assert not run.done()
    assert "of the cell: time.sleep(0.02)" in other(cluster).evidence
    cluster.interrupt()
    with pytest.raises(Exception, match="interrupted"):
        run.result()


def test_a_loader_is_data_and_no_line(cluster):
    """Time in a DataLoader is data loading, and is not sampled as other."""
    source = (
        BEGIN
        + """
class Slow(Dataset):
    def __len__(self): return 20
    def __getitem__(self, i):
        time.sleep(0.03)
        return i
for _ in DataLoader(Slow(), batch_size=1):
    step()
    time.sleep(0.02)
"""
    )
    cluster.sample_lines()
    quiet(cluster, source)
    assert f"line {line_of(source, 'sleep(0.02)')} of the cell" in other(cluster).evidence
    assert "sleep(0.03)" not in other(cluster).evidence


def test_one_ranks_line_is_named_with_the_rank(cluster):
    """Only rank 1 pauses, for which rank 0 waits in its step."""
    cluster.sample_lines()
    quiet(cluster, SLEEP.replace("    time.sleep(0.02)", "    if rank == 1: time.sleep(0.02)"))
    assert "time.sleep(0.02) (rank 1)" in other(cluster).evidence


def test_nothing_runs_on_a_rank_without_being_asked(cluster):
    """No thread samples before it is asked, nor after the sampled cell."""
    threads = "import threading\n[thread.name for thread in threading.enumerate()]"
    assert "workbench-sampler" not in quiet(cluster, threads).values[0]
    cluster.sample_lines()
    assert "workbench-sampler" in quiet(cluster, threads).values[0]
    assert "workbench-sampler" not in quiet(cluster, threads).values[0]
    assert not any(thread.name == "workbench-sampler" for thread in threading.enumerate())


def test_lines_are_ranked_and_small_ones_left_out():
    """Shares are of all ranks' time; the largest is named in any case."""
    some = LineSamples(3, ("line 1 of the cell: a", "line 2 of the cell: b"), (0.95, 0.05))
    assert sampled_lines({0: some, 1: some}) == "95% in line 1 of the cell: a"
    assert sampled_lines({}) == ""
    assert sampled_lines({0: LineSamples(3, (), ())}) == ""


@pytest.mark.parametrize("message", [LineSamplesRequest(3.0), LineSamples(4, ("x",), (0.5,))])
def test_messages_come_back_as_they_were(message):
    """They can be sent between the kernel and a rank."""
    assert Message.decode(message.encode()) == message
