"""Times of NCCL's collectives, on a simulated GPU."""

import ctypes
import shutil
import statistics
import time
from importlib.util import find_spec
from itertools import count
from typing import NamedTuple

import pytest
from levels import in_soak
from nccl_sources import NcclSources

from workbench.rank.recording.iteration import Outside
from workbench.rank.recording.pack import Packer
from workbench.wire import Flag, IterationRecord
from workbench.wire.record import TICK_NS

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="it compiles"),
    pytest.mark.skipif(find_spec("horovod") is None, reason="no Horovod is installed here"),
    pytest.mark.timing,
    pytest.mark.timeout(300),
]
NUMBERS = count()
ERROR_NS = 1_000_000
"""How exact a time is on a busy machine, which interrupts the thread that takes an anchor."""
EXACT_NS = 3000
"""How exact a duration is: CUDA's resolution."""
BACKWARD_NS, COPY_NS, TRANSFER_NS = 5_000_000, 2_000_000, 20_000_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Horovod's source with the patches."""
    return NcclSources(tmp_path_factory.mktemp("nccl") / "horovod")


class Recorded(NamedTuple):
    """What was recorded of a collective, and when its events were reached."""

    library: str
    submitted: int
    responded: int
    began: int
    ended: int
    finished: int
    events: list[int]

    @property
    def of_gpu(self):
        """The times that a GPU has measured."""
        return self.responded, self.began, self.ended


class Gpu:
    """Collectives of a rank with a simulated GPU."""

    def __init__(self, path):
        from workbench.rank.backends.horovod_tap import Tap

        self.library = ctypes.CDLL(str(path))
        self.library.allreduce.restype = ctypes.c_int64
        self.library.simulated_recorded.restype = ctypes.c_int64
        self.library.simulated_queue_delay.argtypes = [ctypes.c_int64]
        self.tap = Tap(self.library, {})
        self.tap.record()

    def queue(self, tensors=3):
        """Run an allreduce, and return when its tensors were computed."""
        times = map(ctypes.c_int64, (BACKWARD_NS, COPY_NS, TRANSFER_NS))
        return self.library.allreduce(self._name(), tensors, *times)

    def allreduce(self, tensors=3):
        """Run an allreduce, and return what is recorded of it; its first event is the backward."""
        return self._recorded([self.queue(tensors)], tensors)

    def run(self, steps, tensors=3):
        """Run a collective in steps, and return what is recorded of it."""
        reached = (ctypes.c_int64 * steps.count("event"))()
        self.library.run_steps(self._name(), tensors, steps.encode(), reached)
        return self._recorded(list(reached), tensors)

    def _name(self):
        return f"tensor{next(NUMBERS)}.".encode()

    def _recorded(self, events, tensors):
        done = self.tap.take(time.monotonic_ns())
        assert len(done.operations) == tensors
        library = done.operations[0].library
        if library:
            assert all((row == row[0]).all() for row in done.times[1:-1])  # one buffer
        return Recorded(library, *done.times[:, -1].tolist(), events)


@pytest.fixture(scope="module")
def library(sources, tmp_path_factory):
    """Horovod with a simulated GPU."""
    return sources.link_simulation(tmp_path_factory.mktemp("library") / "simulation.so")


@pytest.fixture
def gpu(library, tmp_path):
    """A new GPU: the library is loaded again."""
    return Gpu(shutil.copy(library, tmp_path))


def near(*times):
    """Equal to times of the host's clock."""
    return pytest.approx(times, abs=ERROR_NS, rel=0)


@pytest.mark.parametrize("elastic", [0, in_soak(1)])
def test_an_allreduce_has_the_times_of_the_gpu(gpu, elastic):
    """The wait for the gradients is no copy, and the copy no transfer."""
    gpu.library.choose(elastic, 0)
    found = gpu.allreduce()
    (ready,) = found.events
    assert found.library == "NCCL_ALLREDUCE"
    assert found.of_gpu == near(ready, ready + COPY_NS, ready + COPY_NS + TRANSFER_NS)
    assert found.began - found.responded == pytest.approx(COPY_NS, abs=EXACT_NS, rel=0)
    assert found.ended - found.began == pytest.approx(TRANSFER_NS, abs=EXACT_NS, rel=0)
    assert found.finished >= ready + 2 * COPY_NS + TRANSFER_NS


@pytest.mark.soak
def test_a_record_says_that_its_transfers_are_known(gpu):
    """So waiting, queueing and transfer are distinguished."""
    gpu.queue()
    pack = Packer([gpu.tap], 1, lambda: 0)
    ((layout, packed),) = pack([Outside(1, time.monotonic_ns())])
    record = IterationRecord.unpack(packed)
    assert record.flags & Flag.TRANSFERS_SEEN
    assert layout.libraries == ("NCCL_ALLREDUCE",) * 3
    transfer_ns = (record.ended[0] - record.began[0]) * TICK_NS
    assert transfer_ns == pytest.approx(TRANSFER_NS, abs=EXACT_NS, rel=0)


@pytest.mark.soak
def test_a_tensor_alone_is_not_copied(gpu):
    """Its transfer begins when the stream has the tensor."""
    found = gpu.allreduce(tensors=1)
    (ready,) = found.events
    assert found.of_gpu == near(ready, ready, ready + TRANSFER_NS)
    assert found.began == found.responded


@pytest.mark.soak
def test_a_host_that_is_late_changes_no_time(gpu):
    """Events are read long after they were reached, also before the first anchor."""
    found = gpu.run("work 4000\nevent\nwork 5000\nevent NCCL_BCAST\nevent\nsleep 50000\nwait")
    ready, ended, _ = found.events
    assert found.of_gpu == near(ready, ready, ended)


@pytest.mark.soak
def test_a_transfer_in_parts_is_one(gpu):
    """Horovod's thread launches one of the parts; that is no transfer."""
    found = gpu.run(
        "work 9000\nevent\nwork 1000\nevent NCCL_REDUCESCATTER\nlaunch NCCL_ALLREDUCE\n"
        "work 6000\nevent NCCL_ALLGATHER\nevent\nwait"
    )
    ready, _, ended, _ = found.events
    assert found.library == "NCCL_REDUCESCATTER"
    assert found.of_gpu == near(ready, ready, ended)


@pytest.mark.soak
def test_a_transfer_over_the_host_is_one(gpu):
    """As in a hierarchical allreduce, which waits for the GPU in between."""
    found = gpu.run(
        "work 2000\nevent\nwork 1000\nevent NCCL_REDUCESCATTER\nwait\nlaunch MPI_ALLREDUCE\n"
        "work 3000\nevent NCCL_ALLGATHER\nevent\nwait"
    )
    ready, _, ended, _ = found.events
    assert found.of_gpu == near(ready, ready, ended)


def test_times_stay_exact(gpu):
    """Anchors are replaced, since the clocks drift apart: by 0.5 ms here."""
    errors, until = [], time.monotonic() + 5
    while time.monotonic() < until:
        found = gpu.allreduce()
        errors.append(abs(found.responded - found.events[0]))
    assert statistics.median(errors) < 150_000


def test_a_gpu_that_does_not_answer_is_not_waited_for(gpu):
    """Its transfers are unknown, until it answers again."""
    gpu.library.simulated_queue_delay(30_000_000)
    found = gpu.run("event\nwork 1000\nevent NCCL_ALLREDUCE\nevent\nwait")
    assert found.library == ""
    assert found.finished - found.events[-1] < 20_000_000
    gpu.library.simulated_queue_delay(0)
    time.sleep(1.1)
    assert gpu.allreduce().library == "NCCL_ALLREDUCE"


@pytest.mark.soak
def test_a_completion_before_the_gpu_leaves_the_transfer_unknown(gpu):
    """HOROVOD_ENABLE_ASYNC_COMPLETION: callers go on, and the GPU waits for the transfer."""
    gpu.library.choose(0, 1)
    found = gpu.allreduce()
    assert found.library == ""
    assert found.finished < found.events[0] + COPY_NS + TRANSFER_NS


@pytest.mark.soak
def test_only_what_is_recorded_has_more_events(gpu):
    """Without it, the backward and the end have one; there are three more, and anchors."""

    def events():
        before = gpu.library.simulated_recorded()
        gpu.queue()
        return gpu.library.simulated_recorded() - before

    gpu.tap.record(0)
    assert [events(), events()] == [2, 2]
    gpu.tap.record()
    assert 6 <= events() <= 8
    assert events() == 5
