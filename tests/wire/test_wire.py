"""What passes between kernel and ranks survives the way, and strangers stay out."""

import dataclasses
import os
import queue
import threading
import time
from array import array

import psutil
import pytest
import zmq
from timers import FAR_S

from workbench.errors import WireError
from workbench.wire import Flag, Inbox, IterationRecord, Layout, Message, Outbox, link
from workbench.wire.message import VERSION
from workbench.wire.rank_messages import ClockPing
from workbench.wire.record import TIMES
from workbench.wire.transfer_messages import Chunk, DropTransfer

CURRENT = bytes([VERSION])


def record(**changes):
    values = {
        "cell": 3, "index": 7, "start_ns": 10**15, "duration_ns": 25_000_000,
        "data_ns": 1, "copy_ns": 9, "forward_ns": 2, "backward_ns": 3, "exposed_ns": 4,
        "optimizer_ns": 5, "other_ns": 6, "communication_ns": 7, "overlapped_ns": 3,
        "size_bytes": 1 << 33, "tensors": 161, "world_size": 512, "dropped": 2,
        "flags": Flag.FIRST_OF_CELL, "layout": 9,
        "submitted": array("I", range(161)), "finished": array("I", range(500, 661)),
        # eight buffers
        **{
            name: array("I", (at + place // 21 for place in range(161)))
            for at, name in enumerate(TIMES[1:-1], 300)
        },
        "stopped_ns": 2,
    }  # fmt: skip
    return IterationRecord(**(values | changes))


@pytest.fixture
def inbox():
    received = queue.Queue()
    box = Inbox(lambda rank, message: received.put((rank, message)), on_error=received.put)
    box.received = received
    yield box
    box.close()


def test_a_record_comes_back_as_it_was():
    """Packing and unpacking loses nothing, with and without collectives."""
    for original in (
        record(),
        record(**{name: array("I") for name in TIMES}),
    ):
        assert IterationRecord.unpack(original.pack()) == original


def test_a_record_of_161_tensors_is_small():
    """ResNet-50's iteration takes at most 2.7 KB on the wire."""
    assert len(record().pack()) <= 2700


@pytest.mark.parametrize("length", [0, 1, 40, 200, 1500])
def test_a_record_cut_short_is_refused(length):
    """A record that lost its end is named as such, not read as zeros."""
    with pytest.raises(WireError):
        IterationRecord.unpack(record().pack()[:length])


def test_a_record_of_another_version_is_refused():
    """A record from another version of the package is named as such."""
    with pytest.raises(WireError, match="version 99"):
        IterationRecord.unpack(bytes([99]) + record().pack()[1:])


def test_a_layout_comes_back_as_it_was():
    """Names, sizes, group sizes, kinds, process sets and callers survive."""
    layout = Layout(
        4, ("a.weight", "b"), (400, 8), (1, 3),
        ("allreduce", "allgather"), (0, 1), (4, 2), ("optimizer", "cell"),
        ("GLOO_ALLREDUCE", ""),
    )  # fmt: skip
    assert Message.decode(layout.encode()) == layout


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [CURRENT, b"DropTransfer"],
        [b"\x01", b"DropTransfer", b'{"transfer": 1}'],
        [CURRENT, b"DropTransfer", b"{"],
        [CURRENT, b"NoSuchMessage", b"{}"],
    ],
)
def test_a_broken_message_is_refused(frames):
    """Too few frames, another version, no JSON, or an unknown class is a WireError."""
    with pytest.raises(WireError):
        Message.decode(frames)


def test_messages_pass_in_order_both_ways(inbox):
    """A rank's messages arrive in order with its number; an answer reaches that rank."""
    answers = queue.Queue()
    outbox = Outbox(inbox.address_for(5), answers.put)
    for number in range(1000):
        outbox.send(Chunk(number, 0, (b"\0" * 10,)))
    got = [inbox.received.get(timeout=FAR_S) for _ in range(1000)]
    assert [(rank, chunk.transfer) for rank, chunk in got] == [(5, n) for n in range(1000)]
    inbox.send(5, ClockPing(1, 2))
    assert answers.get(timeout=FAR_S) == ClockPing(1, 2)
    outbox.close()


def test_an_error_of_a_handler_is_logged(caplog):
    """An inbox without `on_error` logs the exception with its traceback, and goes on."""
    received = queue.Queue()

    def handle(_rank, message):
        if message.transfer == 1:
            raise ZeroDivisionError("planted")
        received.put(message)

    box = Inbox(handle)
    outbox = Outbox(box.address_for(5))
    outbox.send(DropTransfer(1))
    outbox.send(DropTransfer(2))
    assert received.get(timeout=FAR_S) == DropTransfer(2)
    outbox.close()
    box.close()
    assert "Message of rank 5: failed, ZeroDivisionError('planted')" in caplog.text
    assert "in handle" in caplog.text


def test_a_message_that_cannot_be_encoded_ends_no_thread(inbox, capfd):
    """Neither the kernel's nor the rank's: both send what follows, and report the error."""
    answers = queue.Queue()
    outbox = Outbox(inbox.address_for(5), answers.put)
    outbox.send(DropTransfer(1))
    assert inbox.received.get(timeout=60) == (5, DropTransfer(1))
    inbox.send(5, DropTransfer(object()))
    inbox.send(5, DropTransfer(2))
    assert answers.get(timeout=60) == DropTransfer(2)
    error = inbox.received.get(timeout=60)
    assert isinstance(error, WireError)
    assert str(error).startswith("Message to rank 5: failed, TypeError(")
    outbox.send_later(lambda: [DropTransfer(object()), DropTransfer(3)])
    outbox.send(DropTransfer(4))
    assert inbox.received.get(timeout=60) == (5, DropTransfer(3))
    assert inbox.received.get(timeout=60) == (5, DropTransfer(4))
    outbox.close()
    assert "TypeError" in capfd.readouterr().err


class _Scarce(list):
    """Frames of which the second access fails, because there is no memory."""

    accesses = 0

    def __getitem__(self, index):
        self.accesses += 1
        if self.accesses == 2:
            raise MemoryError
        return super().__getitem__(index)


@dataclasses.dataclass(frozen=True)
class _SentWithoutMemory(DropTransfer):
    def encode(self):
        return _Scarce(DropTransfer(self.transfer).encode())


def test_no_memory_within_a_message_loses_nothing(inbox):
    """The message is sent to its end, and what was taken with it is sent, each once."""
    outbox = Outbox(inbox.address_for(5))
    source = [DropTransfer(1), _SentWithoutMemory(2), DropTransfer(3)]

    def take():
        taken, source[:] = list(source), []
        return taken

    outbox.send_later(take)
    outbox.send(DropTransfer(4))
    got = [inbox.received.get(timeout=60) for _ in range(4)]
    assert got == [(5, DropTransfer(number)) for number in (1, 2, 3, 4)]
    outbox.close()


def without_memory(times, function):
    """Return a function that raises a MemoryError so many times before it works."""
    failures = iter(range(times))

    def call():
        if next(failures, None) is not None:
            raise MemoryError
        return function()

    return call


@dataclasses.dataclass(frozen=True)
class _EncodedLater(DropTransfer):
    failures: int = 0

    def encode(self):
        message = DropTransfer(self.transfer)
        if self not in attempts:
            attempts[self] = without_memory(self.failures, message.encode)
        return attempts[self]()


attempts = {}
"""The calls of `_EncodedLater.encode`."""


def test_no_memory_for_a_message_delays_it(inbox):
    """It is encoded again, and messages arrive in their order, each once."""
    outbox = Outbox(inbox.address_for(5))
    outbox.send_later(without_memory(3, lambda: [DropTransfer(1), _EncodedLater(2, 3)]))
    outbox.send(DropTransfer(3))
    got = [inbox.received.get(timeout=FAR_S) for _ in range(3)]
    assert got == [(5, DropTransfer(number)) for number in (1, 2, 3)]
    outbox.close()


def test_a_message_for_which_there_is_never_memory(inbox, monkeypatch, capfd):
    """It is reported and omitted after a while; smaller ones are sent."""
    monkeypatch.setattr(link, "_NO_MEMORY_S", 0.3)
    outbox = Outbox(inbox.address_for(5))
    outbox.send(_EncodedLater(6, 10**6))
    outbox.send_later(without_memory(10**6, list))
    outbox.send(DropTransfer(7))
    assert inbox.received.get(timeout=FAR_S) == (5, DropTransfer(7))
    outbox.close()
    assert "MemoryError" in capfd.readouterr().err


def test_a_stranger_without_a_key_is_not_heard(inbox):
    """A peer with a key pair of its own making cannot send a message in."""
    address = inbox.address_for(0)
    public, secret = zmq.curve_keypair()
    own = {"public_key": public.decode(), "secret_key": secret.decode()}
    stranger = Outbox(dataclasses.replace(address, **own))
    stranger.send(DropTransfer(666))
    friend = Outbox(inbox.address_for(1))
    friend.send(DropTransfer(1))
    assert inbox.received.get(timeout=FAR_S) == (1, DropTransfer(1))
    with pytest.raises(queue.Empty):
        inbox.received.get(timeout=0.5)
    stranger.close()
    friend.close()


def test_an_outbox_that_cannot_send_is_closed():
    """Its kernel is gone, and more is waiting than ZeroMQ keeps: its thread ends all the same."""
    gone = Inbox(lambda *_: None)
    address = gone.address_for(0)
    gone.close()
    others = set(threading.enumerate())
    outbox = Outbox(address)
    for number in range(3_000):
        outbox.send(Chunk(number, 0, (bytes(1000),)))
    outbox.close()
    own = set(threading.enumerate()) - others
    assert "workbench-outbox" not in {thread.name for thread in own}


def test_a_rank_that_replaces_one_that_has_ended():
    """What the old process sent and nobody has read is dropped; the new one is received."""
    received, connected = queue.Queue(), threading.Event()

    def handle(rank, message):
        received.put((rank, message.transfer))
        connected.wait(60)

    box = Inbox(handle, on_error=received.put)
    address = box.address_for(1)
    old = Outbox(address)
    for number in range(1_000):
        old.send(DropTransfer(number))
    assert received.get(timeout=60) == (1, 0)
    old.close()
    new = Outbox(address)
    new.send(DropTransfer(10**6))
    assert new.flush()
    time.sleep(0.5)  # until its connection has taken the number
    connected.set()
    try:
        while received.get(timeout=FAR_S) != (1, 10**6):
            continue
    finally:
        new.close()
        box.close()


def test_an_inbox_whose_port_is_taken_leaves_nothing():
    """A kernel may try to replace another one as often as it likes."""
    box = Inbox(lambda *_: None)
    try:
        with pytest.raises(WireError, match="previous kernel"):
            Inbox(lambda *_: None, state=box.to_state())  # what Python opens once
        before = psutil.Process().num_fds(), threading.active_count()
        for _ in range(3):
            with pytest.raises(WireError, match="previous kernel"):
                Inbox(lambda *_: None, state=box.to_state())
        assert (psutil.Process().num_fds(), threading.active_count()) == before
    finally:
        box.close()


def test_what_is_sent_after_the_end_goes_nowhere():
    """Its descriptors may belong to another file by then."""
    box = Inbox(lambda *_: None)
    box.close()
    pipes = [os.pipe() for _ in range(20)]
    try:
        box.send(0, DropTransfer(1))
        for reader, _ in pipes:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):  # it is empty
                os.read(reader, 1)
    finally:
        for descriptor in (end for pipe in pipes for end in pipe):
            os.close(descriptor)
