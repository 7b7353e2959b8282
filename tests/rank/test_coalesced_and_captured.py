"""Coalesced collectives are one, and a CUDA graph is captured without an event of this package.

PyTorch's own process group without a network coalesces; the GPU is simulated.
"""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from test_recorder import Event, Ring, Stream, iterate, sums
from timers import InThread
from torch.testing._internal.distributed.fake_pg import FakeStore

from workbench.rank.backends.ddp_hooks import DDPHooks
from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_collectives import TorchCollectives
from workbench.rank.backends.torch_operations import METHODS, measure
from workbench.rank.recording.collectives import Operation
from workbench.rank.recording.device_clock import DeviceClock
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.torch_hooks import TorchHooks
from workbench.wire import Flag

CPU = {"device": torch.device("cpu")}


@pytest.fixture(params=["fake"])
def group(request, tmp_path):
    """Four ranks of which only this one exists, or this one alone with Gloo."""
    if request.param == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    else:
        ring = f"file://{tmp_path}/ring"
        dist.init_process_group("gloo", init_method=ring, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def recorder(group):
    """A recorder of what this process calls."""
    recorder = Recorder(lambda handle: True, lambda recorded: None)
    calls = TorchCalls(recorder)
    hooks = TorchCollectives(recorder, calls), DDPHooks(recorder, calls)
    for one in hooks:
        one.install()
    yield recorder
    for one in hooks:
        one.remove()


def taken(recorder):
    """What was recorded, without its caller."""
    found = recorder.reported.take(1 << 62)
    assert (found.times[0] <= found.times[-1]).all()
    return [(one.name, one.kind, one.tensors, one.size) for one in found.operations]


@pytest.mark.parametrize(("group", "of_group"), [("gloo", {}), ("fake", CPU)], indirect=["group"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_allreduces_that_pytorch_collects_are_one(recorder, of_group, asynchronous):
    """PyTorch makes one call of them."""
    with dist._coalescing_manager(async_ops=asynchronous, **of_group) as together:
        for size in (10, 20, 30):
            dist.all_reduce(torch.ones(size))
    if asynchronous:
        together.wait()
    assert taken(recorder) == [("all_reduce 1", "allreduce", 3, 240)]


def test_collectives_that_a_group_coalesces_are_one(recorder):
    """With all of their bytes and tensors."""
    tensors = [torch.ones(10), torch.ones(20), torch.ones(30)]
    with dist._coalescing_manager(**CPU):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    assert taken(recorder) == [("broadcast 1", "broadcast", 3, 240)]
    with dist._coalescing_manager(**CPU, async_ops=True) as together:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    together.wait()
    assert taken(recorder) == [("broadcast 4", "broadcast", 3, 240)]


def test_different_kinds_stay_apart(recorder, group):
    """An exchange is a send and a receive, each of two tensors."""
    with dist._coalescing_manager(**CPU, async_ops=True) as together:
        for peer in (1, 2):
            group.send([torch.ones(10)], peer, 0)
            group.recv([torch.ones(10)], peer, 0)
    together.wait()
    assert sorted(one[1:] for one in taken(recorder)) == [("recv", 2, 80), ("send", 2, 80)]


class CapturedStream(Stream):
    """A stream of which a graph can be captured: events are then refused, as by CUDA."""

    capturing = False

    def event(self):
        return CapturedEvent(self)


class CapturedEvent(Event):
    def record(self):
        assert not self._stream.capturing
        super().record()

    def query(self):
        assert not self._stream.capturing
        assert self.at is not None
        return super().query()


class Graph:
    """What is called of ``torch.cuda.CUDAGraph``."""

    stream = None

    def capture_begin(self, *_, fails=False):
        if fails:
            raise RuntimeError("not on this stream")
        self.stream.capturing = True

    def capture_end(self):
        self.stream.capturing = False


@pytest.fixture
def gpu(monkeypatch):
    """A simulated stream, its recorder with hooks, and a graph."""
    stream = CapturedStream()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    monkeypatch.setattr(Graph, "stream", stream)
    ring = Ring(device=DeviceClock(stream.event))
    hooks = TorchHooks(ring.recorder, copies=True)
    hooks.install()
    yield stream, ring, Graph()
    hooks.remove()
    assert "_note_capture" not in Graph.capture_begin.__code__.co_names


def test_phases_while_a_graph_is_captured(gpu):
    """Nothing is recorded or asked; iterations before and after have their exact times."""
    stream, ring, graph = gpu

    def train(turns):
        for _ in range(turns):
            ring.recorder.loop.forward_begins(training=True, grad=True)
            stream.work(5)
            ring.recorder.loop.backward_begins()
            stream.work(8)
            ring.recorder.loop.backward_ends()
            ring.recorder.loop.step_begins(1)
            stream.work(1)
            ring.recorder.loop.step_ends(1)
            stream.now += 14

    held = []
    ring.recorder._receiver = held.append
    for _ in range(3):
        train(3)
        graph.capture_begin()
        assert not any(item.ready for item in held if hasattr(item, "steps"))
        train(1)
        graph.capture_end()
    train(2)
    stream.now += 100
    ring.recorder.end_cell()
    for item in held:
        assert item.ready
        ring.pack(item)
    assert len(ring.records) == 14
    for number, record in enumerate(ring.records[1:], 1):
        assert sums(record) == record.duration_ns
        if number % 4 != 3 and number % 4 != 0:
            assert (record.forward_ns, record.backward_ns) == (5e6, 8e6), number


def test_a_capture_begins_after_a_query_in_another_thread(gpu, monkeypatch):
    """The sender asks for the end of an iteration when training begins to capture."""
    stream, ring, graph = gpu
    held = []
    ring.recorder._receiver = held.append
    iterate(ring, [])
    iterate(ring, [])
    asked, query = threading.Event(), CapturedEvent.query

    def slow(event):
        asked.set()
        for _ in range(100):
            assert not stream.capturing
            time.sleep(0.001)
        return query(event)

    monkeypatch.setattr(CapturedEvent, "query", slow)
    iteration = next(item for item in held if hasattr(item, "steps"))
    sender = InThread(lambda: iteration.ready)
    assert asked.wait(60)
    graph.capture_begin()
    sender.join()
    graph.capture_end()


def test_a_capture_that_fails_ends(gpu):
    """Its error is the user's, and phases are measured again."""
    stream, ring, graph = gpu
    with pytest.raises(RuntimeError, match="not on this stream"):
        graph.capture_begin(fails=True)
    assert not ring.recorder.capturing
    iterate(ring, [])
    stream.now += 1
    ring.recorder.end_cell()
    assert len(ring.records) == 1


def test_a_cell_that_begins_with_a_capture(gpu):
    """Its phases are those of the host, until an iteration begins without a capture."""
    _, ring, graph = gpu
    graph.capture_begin()
    iterate(ring, [])
    graph.capture_end()
    iterate(ring, [])
    iterate(ring, [])
    ring.recorder.end_cell()
    on_device = [bool(record.flags & Flag.DEVICE_TIMES) for record in ring.records]
    assert on_device == [False, False, True]


def test_collectives_while_a_graph_is_captured(gpu, group):
    """No event is used for them, and their iteration says that they are not timed."""
    stream, ring, graph = gpu
    calls, recorder = TorchCalls(ring.recorder), ring.recorder

    def call():
        return calls.call(METHODS["allreduce"], group, (16, 1), time.perf_counter_ns(), 1)

    iterate(ring, [])
    calls.follow_stream([call()], None)
    earlier = call()
    stream.work(10)
    calls.follow_stream([earlier], None)  # not done when the capture begins
    graph.capture_begin()
    calls.follow_stream([call()], None)
    recorder.loop.buckets.find_done()
    graph.capture_end()
    stream.now += 20
    iterate(ring, [])
    ring.recorder.end_cell()
    assert ring.records[1].flags & Flag.UNHEARD
    assert sum(record.tensors for record in ring.records) == 2


def test_a_coalesced_collective_is_one_for_all_its_results(gpu, group):
    """Each of its results is waited for on the GPU's stream."""
    _, ring, _ = gpu
    calls = TorchCalls(ring.recorder)
    tensors = [torch.ones(4), torch.ones(4)]
    named, now = METHODS["allreduce_coalesced"], time.perf_counter_ns()
    one = calls.call(named, group, measure(tensors), now, 1)
    for _ in tensors:
        calls.follow_stream([one], None)
    found = ring.recorder.reported.take(1 << 62).operations
    assert [(operation.tensors, operation.size) for operation in found] == [(2, 32)]


class Pending:
    """A collective on a GPU, which is done when the test says so."""

    ready = False
    finished = 0

    def done(self):
        if self.ready and not self.finished:
            self.finished = time.perf_counter_ns()
        return bool(self.finished)


def test_a_collective_that_is_found_at_the_end_of_a_step_belongs_to_it():
    """And not to the next iteration."""
    ring = Ring()
    for turn in range(3):
        pending = Pending()
        operation = Operation(f"turn {turn}", 4, 1)
        ring.recorder.loop.forward_begins(training=True, grad=True)
        ring.recorder.loop.backward_begins()
        ring.recorder.loop.backward_ends()
        ring.recorder.loop.buckets.follow(operation, time.perf_counter_ns(), pending)
        ring.recorder.loop.step_begins(1)
        pending.ready = True
        ring.recorder.loop.step_ends(1)
    ring.recorder.end_cell()
    names = [ring.layouts[record.layout].names for record in ring.records]
    assert names == [("turn 0",), ("turn 1",), ("turn 2",)]
