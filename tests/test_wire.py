"""What passes between kernel and ranks survives the way, and strangers stay out."""

import dataclasses
import queue
from array import array

import pytest
import zmq

from workbench.errors import WireError
from workbench.wire import Flag, Inbox, IterationRecord, Layout, Message, Outbox


def record(**changes):
    values = {
        "cell": 3, "index": 7, "start_ns": 10**15, "duration_ns": 25_000_000,
        "data_ns": 1, "copy_ns": 9, "forward_ns": 2, "backward_ns": 3, "exposed_ns": 4,
        "optimizer_ns": 5, "other_ns": 6, "communication_ns": 7, "overlapped_ns": 3,
        "size_bytes": 1 << 33, "tensors": 161, "world_size": 512, "dropped": 2,
        "flags": Flag.FIRST_OF_CELL, "layout": 9,
        "submitted": array("I", range(161)), "unfinished": array("I", range(1, 162)),
        "finished": array("I", range(2, 163)), "stopped_ns": 2,
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
        record(submitted=array("I"), unfinished=array("I"), finished=array("I")),
    ):
        assert IterationRecord.unpack(original.pack()) == original


def test_a_record_of_161_tensors_is_small():
    """ResNet-50's iteration takes at most 2.7 KB on the wire."""
    assert len(record().pack()) <= 2700


@pytest.mark.parametrize("length", [0, 1, 40, 200, 2000])
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
    )  # fmt: skip
    message = Message.decode(Message("layout", layout.to_content()).encode())
    assert Layout.from_content(message.content) == layout


@pytest.mark.parametrize(
    "frames", [[], [b"\x01", b"x"], [b"\x02", b"x", b"{}"], [b"\x01", b"x", b"{"]]
)
def test_a_broken_message_is_refused(frames):
    """Too few frames, another version, or no JSON is a WireError."""
    with pytest.raises(WireError):
        Message.decode(frames)


def test_messages_pass_in_order_both_ways(inbox):
    """A rank's messages arrive in order with its number; an answer reaches that rank."""
    answers = queue.Queue()
    outbox = Outbox(inbox.address_for(5), answers.put)
    for number in range(1000):
        outbox.send(Message("n", {"number": number}, (b"\0" * 10,)))
    got = [inbox.received.get(timeout=5) for _ in range(1000)]
    assert [(rank, m.content["number"]) for rank, m in got] == [(5, n) for n in range(1000)]
    inbox.send(5, Message("pong"))
    assert answers.get(timeout=5) == Message("pong")
    outbox.close()


def test_a_stranger_without_a_key_is_not_heard(inbox):
    """A peer with a key pair of its own making cannot send a message in."""
    address = inbox.address_for(0)
    public, secret = zmq.curve_keypair()
    own = {"public_key": public.decode(), "secret_key": secret.decode()}
    stranger = Outbox(dataclasses.replace(address, **own))
    stranger.send(Message("evil"))
    friend = Outbox(inbox.address_for(1))
    friend.send(Message("good"))
    assert inbox.received.get(timeout=5) == (1, Message("good"))
    with pytest.raises(queue.Empty):
        inbox.received.get(timeout=0.5)
    stranger.close()
    friend.close()


def test_without_a_kernel_the_oldest_is_dropped_and_counted():
    """Nothing blocks and memory stays bounded while nobody takes the messages."""
    gone = Inbox(lambda *_: None)
    address = gone.address_for(0)
    gone.close()
    outbox = Outbox(address, delay_s=30, limit=10)
    for _ in range(25):
        outbox.send(Message("n"))
    assert outbox.dropped == 15
