"""The recorder by its events alone: shapes that need no ring, or that this build cannot run."""

import threading
import time

import numpy as np
import pytest

from workbench.rank.collectives import Operation
from workbench.rank.cycle import Cycle
from workbench.rank.device_clock import DeviceClock
from workbench.rank.pack import Packer, merge, overlap
from workbench.rank.recorder import Recorder
from workbench.wire import Flag, IterationRecord, Layout


class Ring:
    """A ring of one's own: handles finish when the test says so, or once they are waited for."""

    def __init__(self, poll=None, device=None):
        self.done = set()
        self.awaited = set()
        self.records = []
        self.layouts = {}
        self.dropped = 0
        packer = Packer(2, lambda: self.dropped)
        deliver = self._deliver(packer)
        self.recorder = Recorder(poll or self._poll, deliver, device)

    def _poll(self, handle):
        done = handle in self.done
        if handle in self.awaited:
            self.done.add(handle)
        return done

    def _deliver(self, packer):
        def deliver(iteration):
            message, record = packer(iteration)
            if message is not None:
                layout = Layout.from_content(message.content)
                self.layouts[layout.number] = layout
            self.records.append(IterationRecord.unpack(record))

        return deliver

    def submit(self, handle, name, size=100, by="optimizer", process_set=0):
        operation = Operation(name, size, 1, by=by, process_set=process_set)
        self.recorder.submitted(operation, handle, time.perf_counter_ns())

    def wait(self, handle):
        self.awaited.add(handle)
        self.recorder.wait(handle)
        self.recorder.waited(handle)

    def step(self, optimizer=1, handles=()):
        """As Horovod's optimizer does: two nested steps, a wait between their beginnings."""
        self.recorder.step_begins(optimizer)
        self.recorder.exposed_begins()
        for handle in handles:
            self.wait(handle)
        self.recorder.exposed_ends()
        self.recorder.step_begins(optimizer)
        self.recorder.step_ends(optimizer)
        self.recorder.step_ends(optimizer)


def sums(record):
    phases = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
    return sum(getattr(record, f"{phase}_ns") for phase in phases)


def iterate(ring, handles):
    ring.recorder.forward_begins(training=True, grad=True)
    ring.recorder.backward_begins()
    for handle in handles:
        ring.submit(handle, f"p{handle % 10}")
    ring.recorder.backward_ends()
    ring.step(handles=handles)


def test_records_hold_what_happened():
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


def test_a_wait_before_the_gradients_is_told_from_that_for_them():
    """A loss that is averaged before the backward: its wait is no part of the last stop."""
    ring = Ring()
    for process_set, known in ((0, True), (1, False)):
        ring.recorder.forward_begins(training=True, grad=True)
        ring.submit(1, "loss", process_set=process_set)
        began = time.perf_counter_ns()
        ring.wait(1)
        spent = time.perf_counter_ns() - began
        ring.recorder.backward_begins()
        ring.submit(2, "gradient")
        ring.recorder.backward_ends()
        ring.step(handles=[2])
        ring.recorder.end_cell()
        record = ring.records[-1]
        assert 0 <= record.stopped_ns <= min(spent, record.exposed_ns)
        assert (record.stopped_ns > 0) == known
        ring.recorder.begin_cell(1)


def test_a_completion_is_bracketed_by_polls():
    """A collective seen unfinished by one submission and finished by the next ended between."""
    ring = Ring()
    ring.recorder.forward_begins(training=True, grad=True)
    ring.recorder.backward_begins()
    ring.submit(1, "a")
    ring.submit(2, "b")  # sees a unfinished
    ring.done.add(1)
    time.sleep(0.002)
    ring.submit(3, "c")  # sees a finished
    ring.recorder.backward_ends()
    ring.step(handles=[1, 2, 3])
    ring.recorder.end_cell()
    (record,) = ring.records
    names = ring.layouts[record.layout].names
    a, c = names.index("a"), names.index("c")
    assert record.submitted[a] < record.unfinished[a] < record.finished[a]
    assert record.finished[a] - record.unfinished[a] >= 2_000_000 / 100 * 0.9
    assert record.finished[a] < record.finished[c]


def test_steps_within_the_backward_end_no_iteration():
    """Adasum steps each parameter inside the backward; only the outer step counts."""
    ring = Ring()
    for _ in range(2):
        ring.recorder.forward_begins(training=True, grad=True)
        ring.recorder.backward_begins()
        for _ in range(5):
            ring.recorder.step_begins(1)
            ring.recorder.step_ends(1)
        ring.recorder.backward_ends()
        ring.recorder.step_begins(1)
        ring.recorder.step_ends(1)
    assert ring.recorder.end_cell() == 2
    assert all(sums(record) == record.duration_ns for record in ring.records)


def test_a_step_without_gradients_is_no_iteration():
    """hvd.broadcast_optimizer_state steps once with zeros: before and amid training no row."""
    ring = Ring()

    def bare():
        ring.recorder.step_begins(1)
        ring.recorder.step_ends(1)

    bare()
    iterate(ring, [1])
    bare()
    iterate(ring, [2])
    assert ring.recorder.end_cell() == 2
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
    assert ring.recorder.end_cell() == 4
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
    assert ring.recorder.end_cell() == len(ring.records) > 2
    assert sum(len(record.submitted) for record in ring.records) == count


class Stream:
    """A GPU's stream: work queues up in it, and an event happens when all before it is done.

    Its time in ms is `now`, at which the host stands; work of `work(ms)` begins when
    the work before it has ended, or at once.
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
    ring = Ring(device=DeviceClock(stream.event))
    held, deliver = [], ring.recorder._deliver
    ring.recorder._deliver = held.append
    for _ in range(4):
        stream.now += 30  # the loader; the GPU has 16 ms of work left of the step before
        ring.recorder.loaded(time.perf_counter_ns() - 10**9)
        ring.recorder.copy_begins()
        stream.work(2)
        ring.recorder.copy_ends()
        ring.recorder.forward_begins(training=True, grad=True)
        stream.work(5)
        ring.recorder.backward_begins()
        stream.work(8)
        ring.recorder.backward_ends()
        ring.recorder.step_begins(1)
        stream.work(1)
        ring.recorder.step_ends(1)
    ring.recorder.end_cell()
    assert [iteration.ready for iteration in held] == [True, True, True, False]
    stream.now += 16
    for iteration in held:
        deliver(iteration)
    for record in ring.records[1:]:
        assert record.flags & Flag.DEVICE_TIMES
        found = [record.data_ns, record.copy_ns, record.forward_ns, record.backward_ns]
        assert found == [14e6, 2e6, 5e6, 8e6]
        assert record.optimizer_ns == 1e6
        assert sums(record) == record.duration_ns == 30e6


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
    ring.recorder.step_begins(1)
    ring.recorder.step_begins(1)  # raised within: no end
    for _ in range(3):
        iterate(ring, [])
    count = ring.recorder.end_cell()
    assert count in (3, 4)
    assert all(sums(record) == record.duration_ns for record in ring.records)


def test_a_collective_nobody_waited_for_is_outstanding():
    """What an error left behind is known, so that the ring can be formed anew."""
    ring = Ring()
    ring.recorder.forward_begins(training=True, grad=True)
    ring.submit(1, "a")
    assert ring.recorder.outstanding == 1
    ring.wait(1)
    assert ring.recorder.outstanding == 0


def test_a_handle_that_was_cleared_unseen_is_done():
    """Horovod refuses to be asked about such a handle; training goes on, the record is whole."""

    def cleared(handle):
        raise ValueError(f"Handle {handle} was not created or has been cleared.")

    ring = Ring(poll=cleared)
    iterate(ring, [1, 2])
    ring.recorder.end_cell()
    assert len(ring.records[0].submitted) == 2


def test_a_wait_that_is_interrupted_leaves_its_collective_outstanding():
    """The other ranks may wait for it still: whoever interrupts must know."""
    looks = iter([False, False])

    def interrupted(handle):
        for done in looks:
            return done
        raise KeyboardInterrupt

    ring = Ring(poll=interrupted)
    ring.submit(7, "layer.weight")
    with pytest.raises(KeyboardInterrupt):
        ring.recorder.wait(7)
    assert ring.recorder.outstanding == 1
    assert ring.recorder.blocked is None


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
    assert ring.recorder.outstanding == 0
    polls.clear()
    with pytest.raises(KeyboardInterrupt):
        ring.wait(8)
    assert ring.recorder.outstanding == 1
    ring.recorder.begin_cell(1)
    assert ring.recorder.outstanding == 0


def test_the_rank_knows_where_it_is_blocked():
    """During a wait the tensor's name can be asked for from another thread."""
    ring = Ring()
    ring.submit(7, "layer.weight")
    assert ring.recorder.blocked is None
    waiting = threading.Thread(target=ring.recorder.wait, args=(7,))
    waiting.start()
    deadline = time.monotonic() + 10
    while ring.recorder.blocked is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert ring.recorder.blocked[0] == "layer.weight"
    ring.done.add(7)
    waiting.join()
    ring.recorder.waited(7)
    assert ring.recorder.blocked is None


def test_the_same_tensors_in_another_order_have_one_layout():
    """Autograd may finish gradients in any order; their names are not sent again."""
    ring = Ring()
    iterate(ring, [1, 2, 3])
    iterate(ring, [13, 11, 12])
    ring.recorder.end_cell()
    assert len(ring.layouts) == 1
    assert len(ring.records) == 2


def test_cycles_of_optimizers():
    """Steps group into iterations by the optimizers that take part."""

    def group(steps):
        cycle = Cycle()
        found = [part for step in steps for part in cycle.step(ord(step), step)]
        return ["".join(parts) for parts in found + cycle.end()]

    assert group("aaa") == ["a", "a", "a"]
    assert group("ababab") == ["ab", "ab", "ab"]
    assert group("abcabc") == ["abc", "abc"]
    assert group("aabaab") == ["a", "a", "ba", "ab"]  # one for each step of a
    assert group("") == []


def test_intervals():
    """The union of intervals, and how long two sets of them run at once."""
    begins, ends = np.array([5, 0, 1, 6]), np.array([6, 2, 3, 7])
    assert merge(begins, ends) == [(0, 3), (5, 7)]
    assert merge(begins[:0], ends[:0]) == []
    assert overlap([(0, 3), (5, 7)], [(2, 6)]) == 2
    assert overlap([], [(2, 6)]) == 0
