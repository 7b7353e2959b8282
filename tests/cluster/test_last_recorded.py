"""`%explain` and `%timings` never present an earlier training as the last one."""

import json
import os
import subprocess
import sys

import pytest
from clusters import quiet, training, with_support
from timers import PROCESS_S, eventually

import workbench as wb
from workbench.advisor import explain
from workbench.errors import UsageError

LAST = "The last cell was not recorded."
EARLIER = "An earlier cell was not recorded."


@pytest.fixture
def recording(cluster):
    """A cluster that has recorded a training."""
    eventually(lambda: cluster.state == "ready")
    cluster.recording = True
    quiet(cluster, training(4))
    yield cluster
    cluster.recording = True


def refused(cluster):
    """Why `explain` refuses."""
    with pytest.raises(UsageError) as caught:
        explain(cluster)
    return str(caught.value)


def test_a_cell_without_iterations_after_one_that_was_not_recorded(recording):
    """The training before both is not explained as if it were the last."""
    assert explain(recording) is not None
    recording.recording = False
    quiet(recording, "train(4)")
    assert LAST in recording.timings.unrecorded
    recording.recording = True
    quiet(recording, "1 + 1")
    assert f"{EARLIER} Run it again to record it." in recording.timings.unrecorded
    assert "All figures are of cells before it." in recording.timings.unrecorded
    assert "an earlier cell was not recorded, and no later one had iterations" in refused(recording)
    assert explain(recording, all_cells=True) is not None
    assert explain(recording, 3) is not None
    quiet(recording, "train(4)")
    assert recording.timings.unrecorded == ""
    assert explain(recording) is not None
    quiet(recording, "1 + 1")  # recorded, and without iterations: nothing is hidden
    assert recording.timings.unrecorded == ""
    assert explain(recording) is not None


def test_cells_of_the_package_are_no_cells_of_the_user(recording):
    """A calibration changes nothing, and the figures of a measurement are the newest."""
    recording.recording = False
    recording.calibrate(seconds=1)
    assert explain(recording) is not None
    quiet(recording, "train(4)")
    recording.calibrate(seconds=1)
    assert LAST in recording.timings.unrecorded
    recording.recording = True
    quiet(recording, "train(4)")
    recording.calibrate(seconds=1)
    assert recording.timings.remark == ""  # of the user's last cell
    recording.recording = False
    quiet(recording, "train(4)")
    recording.recording = True
    recording.calibrate(seconds=1)
    assert LAST in recording.timings.unrecorded
    assert "the last cell was not recorded" in refused(recording)
    recording.measure_overhead("train(4)", pairs=3)
    assert recording.timings.unrecorded == ""
    assert explain(recording) is not None


def test_a_measurement_that_fails_leaves_it(recording):
    """No figure of it was recorded, so the newest ones are still of an earlier cell."""
    recording.recording = False
    quiet(recording, "train(4)")
    with pytest.raises(UsageError, match="no iterations"):
        recording.measure_overhead("1 + 1", pairs=3)
    assert LAST in recording.timings.unrecorded
    assert "the last cell was not recorded" in refused(recording)


KERNEL = """
import json, os, workbench as wb
from workbench.advisor import explain
from workbench.cluster import TextSink
from workbench.errors import UsageError
cluster = wb.Cluster(n=2, keep="600s").start()
def quiet(source):
    cluster.run(source, sink=TextSink())
{then}
try:
    explain(cluster)
    said = ""
except UsageError as error:
    said = str(error)
print(json.dumps([cluster.name, cluster.timings.unrecorded, said]), flush=True)
{end}
"""
TRAIN = f"quiet({training(4)!r})\n"
OFF = "cluster.recording = False\n"
ON = "cluster.recording = True\n"
NOTHING = "quiet('1 + 1')\n"
AGAIN = "quiet('train(4)')\n"


@pytest.mark.parametrize(
    ("then", "says", "killed"),
    [
        (TRAIN + OFF, "", False),
        (TRAIN + OFF + AGAIN, LAST, False),
        (TRAIN + OFF + AGAIN, LAST, True),
        (TRAIN + OFF + AGAIN + ON, LAST, True),
        (TRAIN + OFF + AGAIN + ON + NOTHING, EARLIER, True),
        (TRAIN + OFF + AGAIN + ON + AGAIN, "", False),
        (TRAIN + OFF + AGAIN + ON + AGAIN + NOTHING, "", True),
        (TRAIN + OFF + "cluster.calibrate(seconds=1)\n", "", True),
        (OFF + TRAIN, LAST, True),
    ],
)
def test_the_next_kernel_says_the_same(tmp_path, monkeypatch, then, says, killed):
    """A kernel that attaches knows which cells the earlier one did not record."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    source = KERNEL.format(then=then, end="os.kill(os.getpid(), 9)" if killed else "")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True,
        timeout=PROCESS_S, check=False,
        env=with_support() | os.environ,
    )  # fmt: skip
    assert done.stdout, done.stderr
    name, unrecorded, said = json.loads(done.stdout.splitlines()[-1])
    assert [text for text in (LAST, EARLIER) if text in unrecorded] == [says][: bool(says)]
    cluster = wb.Cluster.attach(name)
    try:
        assert cluster.timings.unrecorded == unrecorded
        if said:
            assert refused(cluster) == said
        else:
            assert explain(cluster) is not None
    finally:
        cluster.stop()
