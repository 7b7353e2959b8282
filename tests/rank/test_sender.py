"""Records of iterations on their way to the kernel."""

from timers import eventually

from workbench.rank.recording.device_clock import DeviceClock, Spans
from workbench.rank.recording.iteration import RecordedIteration, StepRecord
from workbench.rank.recording.sender import LIMIT, RecordChannel
from workbench.wire import Inbox
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
        RecordedIteration(1, 0, [StepRecord(0, 1, [0] * 7, 0, [], [], Spans(clock, Failing()))])
    )
    channel.put(RecordedIteration(1, 1, [StepRecord(1, 2, [0] * 7, 0, [], [])]))
    channel.flush()
    assert eventually(lambda: sum(isinstance(one, Records) for one in arrived) == 1)
    assert channel.dropped == 1
    assert channel.records(1) == 1
    channel.close()
    inbox.close()
