"""Records of iterations on their way to the kernel."""

from timers import eventually

from workbench.rank.recording import sender
from workbench.rank.recording.collectives import Operation, Reported
from workbench.rank.recording.device_clock import DeviceClock, Spans
from workbench.rank.recording.iteration import RecordedIteration, StepRecord
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.sender import LIMIT, RecordChannel
from workbench.wire import Inbox, IterationRecord
from workbench.wire.rank_messages import Records


class NotReached:
    """An event of a GPU that has not executed the work before it."""

    def query(self):
        return False


def test_without_a_kernel_the_oldest_is_dropped_and_counted():
    """Nothing blocks and memory stays bounded while nobody takes the messages."""
    gone = Inbox(lambda *_: None)
    address = gone.address_for(0)
    gone.close()
    channel = RecordChannel(address, [], 2)
    step = StepRecord(0, 1, [], 0, [], [], Spans(DeviceClock(NotReached), NotReached()))
    for index in range(LIMIT + 15):
        channel.put(RecordedIteration(1, index, [step]))
    assert channel.dropped == 15
    channel.close()


class Failing:
    """An event that cannot be asked, as one that a captured graph contains."""

    def query(self):
        raise RuntimeError("operation not permitted on an event last recorded in a capture")


def test_an_iteration_whose_times_cannot_be_read_is_dropped():
    """It is counted, and later iterations are sent."""
    arrived = []
    inbox = Inbox(lambda _, message: arrived.append(message))
    channel = RecordChannel(inbox.address_for(0), [], 2)
    clock = DeviceClock(Failing)
    channel.put(
        RecordedIteration(
            1, 0, [StepRecord(0, 1, [0] * Phase.GAP, 0, [], [], Spans(clock, Failing()))]
        )
    )
    channel.put(RecordedIteration(1, 1, [StepRecord(1, 2, [0] * Phase.GAP, 0, [], [])]))
    channel.flush()
    assert eventually(lambda: sum(isinstance(one, Records) for one in arrived) == 1)
    assert channel.dropped == 1
    assert channel.records(1) == 1
    channel.close()
    inbox.close()


class Event:
    """An event that the stream has reached, whose time may be unknown."""

    def __init__(self, ms, known=True):
        self.ms, self.known = ms, known

    def query(self):
        return True

    def elapsed_time(self, end):
        if not end.known:
            raise RuntimeError("an error of CUDA")
        return end.ms - self.ms


def test_one_iteration_that_cannot_be_packed_does_not_lose_the_others(monkeypatch):
    """It is dropped and counted, with its collective; the others have theirs."""
    monkeypatch.setattr(sender, "DELAY_S", 60.0)  # all are packed together, by the flush
    arrived = []
    inbox = Inbox(lambda _, message: arrived.append(message))
    reported = Reported()
    channel = RecordChannel(inbox.address_for(0), [reported], 2)
    clock = DeviceClock(lambda: Event(0))
    for index in range(6):
        size = 4 << index
        operation = Operation(f"g{index}", size, 1, "allreduce", 0, 2, "optimizer", "")
        reported.add(operation, 100 * index + 10, 100 * index + 20)
        spans = Spans(clock, Event(index))
        spans.add(Phase.FORWARD, Event(index + 1, known=index != 2))
        step = StepRecord(100 * index, 100 * index + 50, [0] * Phase.GAP, 0, [], [], spans)
        channel.put(RecordedIteration(1, index, [step]))
    channel.flush()

    def records():
        packed = [
            one for message in arrived if isinstance(message, Records) for one in message.records
        ]
        return [IterationRecord.unpack(one) for one in packed]

    assert eventually(lambda: len(records()) == 5)
    assert [one.index for one in records()] == [0, 1, 3, 4, 5]
    assert [one.size_bytes for one in records()] == [4 << index for index in (0, 1, 3, 4, 5)]
    assert {one.forward_ns for one in records()} == {1_000_000}
    assert {one.dropped for one in records()} == {1}
    assert channel.dropped == 1
    assert channel.records(1) == 5
    channel.close()
    inbox.close()


def test_iterations_are_counted_while_others_are_packed(monkeypatch):
    """The number of a cell includes iterations that are packed after those of another cell."""
    inbox = Inbox(lambda *_: None)
    channel = RecordChannel(inbox.address_for(0), [], 2)
    for index, cell in enumerate((1, 1, 2)):
        step = StepRecord(index, index + 1, [0] * Phase.GAP, 0, [], [])
        channel._waiting.append(RecordedIteration(cell, index, [step]))
    counts, pack = [], channel._pack

    def counted(items):
        counts.append((channel.records(1), channel.records(2)))
        packed = pack(items)
        counts.append((channel.records(1), channel.records(2)))
        assert channel.separate_iterations(2, 1) == 0
        return packed

    monkeypatch.setattr(channel, "_pack", counted)
    channel._take()
    assert [numbers[0] for numbers in counts[:2]] == [2, 2]
    assert [numbers[1] for numbers in counts] == [1, 1, 1, 1]
    assert (channel.records(2), channel._packing) == (1, [])
    channel.close()
    inbox.close()
