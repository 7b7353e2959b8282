"""The recorder by its events alone: shapes that need no ring, or that this build cannot run."""

import time

import numpy as np
import pytest
import torch
from iterations import store
from timers import InThread, eventually

from workbench.rank.recording.collectives import Operation
from workbench.rank.recording.device_clock import DeviceClock
from workbench.rank.recording.iteration import RecordedIteration
from workbench.rank.recording.pack import Packer
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.recorder import Recorder
from workbench.timings.derive import columns
from workbench.timings.summary import notes, summarize
from workbench.wire import Flag, IterationRecord


class Ring:
    """A ring of one's own: handles finish when the test says so, or once they are waited for."""

    def __init__(self, poll=None, device=None, deliver=None):
        self.done = set()
        self.awaited = set()
        self.submitted = {}
        self.records = []
        self.layouts = {}
        self.dropped = 0
        self.recorder = Recorder(poll or self._poll, deliver or self.pack, device)
        self._packer = Packer(self.recorder.sources, 2, lambda: self.dropped)

    def _poll(self, handle):
        done = handle in self.done
        if handle in self.awaited:
            self.done.add(handle)
        return done

    def pack(self, iteration):
        for layout, record in self._packer([iteration]):
            if layout is not None:
                self.layouts[layout.number] = layout
            self.records.append(IterationRecord.unpack(record))

    def end_cell(self):
        """End the cell; return how many records it had."""
        self.recorder.end_cell()
        return len(self.records)

    def submit(self, handle, name, size=100, by="optimizer", process_set=0):
        operation = Operation(name, size, 1, by=by, process_set=process_set)
        self.submitted[handle] = operation, time.perf_counter_ns()

    def wait(self, handle):
        self.awaited.add(handle)
        with self.recorder.waits.wait(handle):
            pass
        if handle in self.submitted:
            self.recorder.reported.add(*self.submitted.pop(handle), time.perf_counter_ns())

    def step(self, optimizer=1, handles=()):
        """As Horovod's optimizer does: two nested steps, a wait between their beginnings."""
        self.recorder.loop.step_begins(optimizer)
        self.recorder.waits.exposed_begins()
        for handle in handles:
            self.wait(handle)
        self.recorder.waits.exposed_ends()
        self.recorder.loop.step_begins(optimizer)
        self.recorder.loop.step_ends(optimizer)
        self.recorder.loop.step_ends(optimizer)


def sums(record):
    phases = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
    return sum(getattr(record, f"{phase}_ns") for phase in phases)


def iterate(ring, handles):
    ring.recorder.loop.forward_begins(training=True, grad=True)
    ring.recorder.loop.backward_begins()
    for handle in handles:
        ring.submit(handle, f"p{handle % 10}")
    ring.recorder.loop.backward_ends()
    ring.step(handles=handles)


def test_records_contain_what_happened():
    """Each step is a record; phases add up to it exactly; names come once."""
    ring = Ring()
    for turn in range(3):
        iterate(ring, [turn * 10, turn * 10 + 1])
    ring.recorder.end_cell()
    assert [record.index for record in ring.records] == [0, 1, 2]
    for record in ring.records:
        assert sums(record) == record.duration_ns
        assert (record.size_bytes, record.tensors) == (200, 2)
        assert len(record.submitted) == 2
    assert [layout.names for layout in ring.layouts.values()] == [("p0", "p1")]
    assert [bool(record.flags & Flag.FIRST_OF_CELL) for record in ring.records] == [
        True,
        False,
        False,
    ]
    starts = [record.start_ns for record in ring.records]
    ends = [record.start_ns + record.duration_ns for record in ring.records]
    assert starts[1:] == ends[:-1]


def test_a_wait_before_the_gradients_differs_from_the_wait_for_them():
    """A loss that is averaged before the backward: its wait is no part of the last stop."""
    ring = Ring()
    for process_set, known in ((0, True), (1, False)):
        ring.recorder.loop.forward_begins(training=True, grad=True)
        ring.submit(1, "loss", process_set=process_set)
        began = time.perf_counter_ns()
        ring.wait(1)
        spent = time.perf_counter_ns() - began
        ring.recorder.loop.backward_begins()
        ring.submit(2, "gradient")
        ring.recorder.loop.backward_ends()
        ring.step(handles=[2])
        ring.recorder.end_cell()
        record = ring.records[-1]
        assert 0 <= record.stopped_ns <= min(spent, record.exposed_ns)
        assert (record.stopped_ns > 0) == known
        ring.recorder.begin_cell(1)


def test_steps_within_the_backward_end_no_iteration():
    """Adasum steps each parameter inside the backward; only the outer step counts."""
    ring = Ring()
    for _ in range(2):
        ring.recorder.loop.forward_begins(training=True, grad=True)
        ring.recorder.loop.backward_begins()
        for _ in range(5):
            ring.recorder.loop.step_begins(1)
            ring.recorder.loop.step_ends(1)
        ring.recorder.loop.backward_ends()
        ring.recorder.loop.step_begins(1)
        ring.recorder.loop.step_ends(1)
    assert ring.end_cell() == 2
    assert all(sums(record) == record.duration_ns for record in ring.records)


def test_a_step_without_gradients_is_no_iteration():
    """hvd.broadcast_optimizer_state steps once with zeros: before and amid training no row."""
    ring = Ring()

    def bare():
        ring.recorder.loop.step_begins(1)
        ring.recorder.loop.step_ends(1)

    bare()
    iterate(ring, [1])
    bare()
    iterate(ring, [2])
    assert ring.end_cell() == 2
    assert bool(ring.records[0].flags & Flag.FIRST_OF_CELL)
    assert all(sums(record) == record.duration_ns for record in ring.records)


def test_collectives_outside_the_iterations_have_a_record_of_their_own():
    """The parameters' broadcast before the first iteration, and a metric's sum after the last."""
    ring = Ring()

    def call(handle, name):
        ring.submit(handle, name, by="cell")
        ring.wait(handle)

    call(1, "parameters")
    iterate(ring, [2])
    call(3, "within")
    iterate(ring, [4])
    call(5, "metric")
    assert ring.end_cell() == 4
    found = [
        (bool(record.flags & Flag.OUTSIDE), ring.layouts[record.layout].names)
        for record in ring.records
    ]
    assert found == [
        (True, ("parameters",)),
        (False, ("p2",)),
        (False, ("p4", "within")),
        (True, ("metric",)),
    ]
    assert all(
        record.duration_ns >= record.communication_ns > 0 and sums(record) == 0
        for record in ring.records
        if record.flags & Flag.OUTSIDE
    )


def test_a_cell_that_never_steps_is_bounded():
    """A loop of collectives without an optimizer is delivered in pieces, and nothing is lost."""
    ring = Ring()
    count = (1 << 16) + 10
    for handle in range(count):
        ring.submit(handle, "metric", by="cell")
        ring.wait(handle)
    assert ring.end_cell() > 2
    assert sum(len(record.submitted) for record in ring.records) == count


class Stream:
    """A GPU's stream: work queues up in it, and an event happens when all before it is done.

    Its time in ms is `now`, which is also the host's; work of `work(ms)` begins when
    the work before it has ended, or immediately.
    """

    def __init__(self):
        self.now = 0.0
        self.free_at = 0.0

    def work(self, duration):
        self.free_at = max(self.free_at, self.now) + duration

    def event(self):
        return Event(self)


class Event:
    def __init__(self, stream):
        self._stream = stream
        self.at = None

    def record(self):
        self.at = max(self._stream.free_at, self._stream.now)

    def query(self):
        return self._stream.now >= self.at

    def elapsed_time(self, end_event):
        assert self.query()
        assert end_event.query()
        return end_event.at - self.at


def test_phases_on_a_gpu_are_those_of_its_stream():
    """The host is far ahead; the GPU's work, and its standing still for data, is what counts."""
    stream = Stream()
    held = []
    ring = Ring(device=DeviceClock(stream.event), deliver=held.append)
    for _ in range(4):
        load = ring.recorder.loop.load_begins()
        stream.now += 30  # the loader; the GPU has 16 ms of work left of the step before
        ring.recorder.loop.load_ends(load)
        ring.recorder.loop.enter(Phase.COPY)
        stream.work(2)
        ring.recorder.loop.leave()
        ring.recorder.loop.forward_begins(training=True, grad=True)
        stream.work(5)
        ring.recorder.loop.backward_begins()
        stream.work(8)
        ring.recorder.loop.backward_ends()
        ring.recorder.loop.step_begins(1)
        stream.work(1)
        ring.recorder.loop.step_ends(1)
    ring.recorder.end_cell()
    held = [item for item in held if isinstance(item, RecordedIteration)]
    assert [iteration.ready for iteration in held] == [True, True, True, False]
    stream.now += 16
    for iteration in held:
        ring.pack(iteration)
    for record in ring.records[1:]:
        assert record.flags & Flag.DEVICE_TIMES
        found = [record.data_ns, record.copy_ns, record.forward_ns, record.backward_ns]
        assert found == [14e6, 2e6, 5e6, 8e6]
        assert record.optimizer_ns == 1e6
        assert sums(record) == record.duration_ns == 30e6


class Reduced:
    """A bucket of DDP that is done."""

    sent = ()

    def __init__(self):
        self.finished = time.perf_counter_ns()

    def done(self):
        return True


def test_the_wait_for_the_last_bucket_on_a_gpu():
    """After its last bucket, a backward only waits; computation between buckets is backward."""
    stream, held = Stream(), []
    ring = Ring(device=DeviceClock(stream.event), deliver=held.append)

    def submit(name):
        operation = Operation(name, 100, 1, by="ddp")
        ring.recorder.loop.bucket_submitted(lambda: operation, time.perf_counter_ns(), Reduced())

    for _ in range(3):
        ring.recorder.loop.forward_begins(training=True, grad=True)
        stream.work(5)
        ring.recorder.loop.backward_begins()
        for name in ("bucket 0", "bucket 1"):
            stream.work(4)
            submit(name)
        stream.work(3)  # the stream waits for the buckets
        ring.recorder.loop.backward_ends()
        ring.recorder.loop.step_begins(1)
        stream.work(1)
        ring.recorder.loop.step_ends(1)
    ring.recorder.end_cell()
    stream.now += 100
    for iteration in held:
        if isinstance(iteration, RecordedIteration):
            ring.pack(iteration)
    for record in ring.records[1:]:
        found = [record.forward_ns, record.backward_ns, record.exposed_ns, record.optimizer_ns]
        assert found == [5e6, 8e6, 3e6, 1e6]
        assert (record.size_bytes, record.tensors) == (200, 2)


def test_loading_for_an_evaluation_is_other_time_on_a_gpu_too():
    """Its spans are assigned at the end of the window, when the use of its batches is known."""
    stream = Stream()
    held = []
    ring = Ring(device=DeviceClock(stream.event), deliver=held.append)
    loop, passes = ring.recorder.loop, (BatchesOf(3), BatchesOf(3))
    for _ in range(3):
        for batches, trains, duration in zip(passes, (True, False), (30, 50), strict=True):
            load = loop.load_begins(batches)
            stream.now += duration
            batch = (torch.ones(4),)
            loop.load_ends(load, batches, batch)
            loop.forward_begins(training=True, grad=trains, arguments=batch)
            stream.work(5)
            if trains:
                loop.backward_begins()
                loop.backward_ends()
            loop.forward_ends(grad=trains)
        loop.step_begins(1)
        loop.step_ends(1)
    ring.recorder.end_cell()
    stream.now += 16
    for iteration in held:
        if isinstance(iteration, RecordedIteration):
            ring.pack(iteration)
    for record in ring.records[1:]:
        assert (record.data_ns, record.samples) == (25e6, 4)  # 5 ms of work were left
        assert record.other_ns == 45e6 + 5e6
        assert sums(record) == record.duration_ns


class BatchesOf:
    """An iterator of a loader."""

    def __init__(self, count):
        self._index_sampler = range(count)


@pytest.mark.parametrize("steps", [3, 40])
def test_a_gpus_events_are_used_again(steps):
    """However long it trains, few events are made: each costs a call to the driver."""
    stream, made = Stream(), []

    def new_event():
        made.append(stream.event())
        return made[-1]

    ring = Ring(device=DeviceClock(new_event))
    for _ in range(steps):
        iterate(ring, [])
        stream.now += 1
    ring.recorder.end_cell()
    assert len(made) <= 3 * 8


def test_a_step_that_raised_does_not_spoil_the_next():
    """After a step that never ended, further steps are iterations again."""
    ring = Ring()
    iterate(ring, [])
    ring.recorder.loop.step_begins(1)
    ring.recorder.loop.step_begins(1)  # raised within: no end
    for _ in range(3):
        iterate(ring, [])
    count = ring.end_cell()
    assert count in (3, 4)
    assert all(sums(record) == record.duration_ns for record in ring.records)


def test_a_handle_that_was_cleared_unseen_is_done():
    """Horovod refuses queries about such a handle; training continues, the record is complete."""

    def cleared(handle):
        raise ValueError(f"Handle {handle} was not created or has been cleared.")

    ring = Ring(poll=cleared)
    iterate(ring, [1, 2])
    ring.recorder.end_cell()
    assert len(ring.records[0].submitted) == 2


def test_after_an_interrupted_wait_the_rank_is_not_blocked():
    """The wait has ended, even if its collective has not."""
    looks = iter([False, False])

    def interrupted(handle):
        for done in looks:
            return done
        raise KeyboardInterrupt

    ring = Ring(poll=interrupted)
    ring.submit(7, "layer.weight")
    with pytest.raises(KeyboardInterrupt):
        ring.wait(7)
    assert ring.recorder.waits.blocked is None


def test_a_barrier_is_waited_for_with_pauses_and_left_by_an_interrupt():
    """Its submission is not heard; a wait that spins would take the core that others need."""
    polls = []

    def poll(handle):
        polls.append(time.monotonic())
        if handle == 8 and len(polls) == 3:
            raise KeyboardInterrupt
        return len(polls) > 1 and time.monotonic() > polls[0] + 0.2

    ring = Ring(poll)
    ring.wait(7)
    assert polls[-1] - polls[0] >= 0.2
    assert len(polls) < 5_000
    polls.clear()
    with pytest.raises(KeyboardInterrupt):
        ring.wait(8)


def test_the_rank_knows_where_it_is_blocked():
    """During a wait its handle can be asked for from another thread."""
    done = set()
    ring = Ring(poll=done.__contains__)
    assert ring.recorder.waits.blocked is None
    waiting = InThread(ring.wait, 7)
    assert eventually(lambda: ring.recorder.waits.blocked is not None)
    assert ring.recorder.waits.blocked.handle == 7
    done.add(7)
    waiting.join()
    assert ring.recorder.waits.blocked is None


def test_the_same_tensors_in_another_order_have_one_layout():
    """Autograd may finish gradients in any order; their names are not sent again."""
    ring = Ring()
    iterate(ring, [1, 2, 3])
    iterate(ring, [13, 11, 12])
    ring.recorder.end_cell()
    assert len(ring.layouts) == 1
    assert len(ring.records) == 2


def test_a_compiled_step_is_an_iteration_of_unknown_phases():
    """Its duration is known; no phase is shown as 0, and its time is no finding."""
    ring = Ring()
    loop = ring.recorder.loop
    for _ in range(3):
        loop.forward_begins(training=False, grad=True)
        loop.compiled_step(1)
    loop.forward_begins(training=False, grad=True)  # a function that does not train
    loop.forward_ends(grad=False)
    assert ring.end_cell() == 3
    assert all(one.other_ns == one.duration_ns > 0 for one in ring.records)
    rows = store(*((0, one) for one in ring.records)).rows()
    table = columns(rows)
    for name in ("data_us", "forward_us", "backward_us", "exposed_us", "optimizer_us", "overlap"):
        assert np.isnan(table[name]).all()
    found = summarize(rows)
    assert found.compiled == found.iterations == 2
    assert any("tf.function" in note for note in notes(found))
