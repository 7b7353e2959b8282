"""`%explain` and `%timings` never present an earlier training as the last one."""

import contextlib
import json
import re

import forked_kernels
import pytest
from clusters import quiet, training, with_support
from levels import in_soak
from timers import PROCESS_S, eventually

import workbench as wb
from workbench.advisor import explain
from workbench.errors import NoCluster, UsageError

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


@pytest.mark.soak
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
cluster = {cluster}
def quiet(source):
    cluster.run(source, sink=TextSink())
def say():
    try:
        explain(cluster)
        reason = ""
    except UsageError as error:
        reason = str(error)
    print("\\nsays", json.dumps([cluster.timings.unrecorded, reason]), flush=True)
say()
{then}
say()
{end}
"""
START = "wb.Cluster(n=2, keep='600s').start()"
ATTACH = "wb.Cluster.attach()"
KILLED = "os.kill(os.getpid(), 9)"
ENDED = ""
TRAIN = f"quiet({training(4)!r})\n"
OFF = "cluster.recording = False\n"
ON = "cluster.recording = True\n"
NOTHING = "quiet('1 + 1')\n"
AGAIN = "quiet('train(4)')\n"
CALIBRATE = "cluster.calibrate(seconds=1)\n"

KERNELS = [
    (START, TRAIN + OFF, "", ENDED),
    (ATTACH, OFF + AGAIN, LAST, ENDED),
    (ATTACH, OFF + AGAIN, LAST, KILLED),
    (ATTACH, ON, LAST, KILLED),
    (ATTACH, ON + NOTHING, EARLIER, KILLED),
    (ATTACH, ON + AGAIN, "", ENDED),
    (ATTACH, ON + NOTHING, "", KILLED),
    (ATTACH, OFF + CALIBRATE, "", KILLED),
]
"""Kernels of one cluster, one after another: what each does, says then, and how it ends."""


def kernel(cluster, then, end):
    """Run a kernel; return what it says of unrecorded cells before and after what it does."""
    source = KERNEL.format(cluster=cluster, then=then, end=end)
    done = forked_kernels.run(source, with_support(), PROCESS_S)
    says = re.findall(r"^says (.*)$", done.stdout, re.MULTILINE)
    assert len(says) == 2, done.stdout + done.stderr
    return json.loads(says[0]), json.loads(says[1])


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A folder in which kernels note their clusters; those that are left end with the test."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    yield
    with contextlib.suppress(NoCluster):
        wb.Cluster.attach().stop()


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    "kernels",
    [in_soak(KERNELS), [(START, OFF + TRAIN, LAST, KILLED)]],
    ids=["all", "never recorded"],
)
def test_the_next_kernel_says_the_same(kernels):
    """A kernel that attaches knows which cells the earlier ones did not record."""
    earlier = None
    for number, (begin, then, says, end) in enumerate(kernels):
        before, after = kernel(begin, then, end)
        assert earlier in (None, before), number
        unrecorded, reason = earlier = after
        texts = [text for text in (LAST, EARLIER) if text in unrecorded]
        assert texts == ([says] if says else []), number
    cluster = wb.Cluster.attach()
    try:
        assert cluster.timings.unrecorded == unrecorded
        if reason:
            assert refused(cluster) == reason
        else:
            assert explain(cluster) is not None
    finally:
        cluster.stop()
