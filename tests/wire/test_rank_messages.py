"""Every message between the kernel and a rank survives its codec; what does not fit is refused."""

import dataclasses
import json

import numpy as np
import pytest

from workbench.errors import RankError, WireError
from workbench.wire import Layout, Message, prompt_messages, rank_messages, transfer_messages
from workbench.wire.message import VERSION
from workbench.wire.prompt_messages import InputReply, InputRequest
from workbench.wire.rank_messages import (
    AbortInit,
    CellEnded,
    ClockPing,
    ClockPong,
    InterruptCell,
    Output,
    OutputTaken,
    RankState,
    Records,
    ReleaseRanks,
    RendezvousPort,
    RendezvousRequest,
    StateRequest,
)
from workbench.wire.transfer_messages import Chunk, DropTransfer, GetChunk, PutChunk

STATE = RankState(
    asked_s=1.5, for_stall_report=True, cell=3, collective="grad ü", blocked_s=0.25,
    collective_number=7, process_set=2, members=(0, 3), calls=9, outstanding=("a", "b"),
    stack="line 1\n", interrupt_stage="pending", raised_s=0.0,
)  # fmt: skip
EMPTY = Output(1, (), (), (), None, b"")
MESSAGES = [
    ClockPing(1, 2**62), ClockPong(1, 2, 3), StateRequest(1.0, stack=True), StateRequest(), STATE,
    dataclasses.replace(STATE, cell=None, collective=None, members=None, collective_number=None),
    InterruptCell(-1), ReleaseRanks(4, peer_lost=True, in_init=False), AbortInit(""),
    RendezvousRequest(), RendezvousPort(4711),
    Output(3, ("stdout", "display"), (0, 5), (1, 2), 17, "ü{}".encode()),
    Output(3, (), (), (), None, b""), OutputTaken(3, 17),
    CellEnded(3, RankError("E", "m", "t"), "", 5, 1, {0: 4, 2: 1}, True, None),
    CellEnded(3, None, "too large", 0, 0, {}, False, b""),
    PutChunk(-5, 0, (3, 4), (b"ab", b"c")), GetChunk(-5, 1 << 40, 8), Chunk(-5, 0, ()),
    InputRequest(3, 1, "breakpoint", "(Pdb) "), InputReply(1, "c", ""), InputReply(1, None, "why"),
    DropTransfer(-5), Records((b"r", b"")),
    Layout(4, ("w",), (400,), (1,), ("allgather",), (1,), (2,), ("cell",), ("GLOO_ALLGATHER",)),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message):
    """Encoding and decoding gives an equal message of the same class."""
    assert Message.decode(message.encode()) == message


def test_every_message_is_covered():
    """No class of message is missing in the round trip above."""
    modules = vars(rank_messages) | vars(transfer_messages) | vars(prompt_messages)
    defined = {kind for kind in modules.values() if _is_message(kind)} | {Layout}
    assert {type(message) for message in MESSAGES} == defined


def _is_message(kind):
    return isinstance(kind, type) and issubclass(kind, Message) and kind is not Message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_of_another_type_is_refused(message):
    """Each field in turn has a value that no type allows: a WireError that names the field."""
    for field in json.loads(message.encode()[2]):
        with pytest.raises(WireError, match=rf"{type(message).__name__}.*{field}"):
            changed(message, field, [{"x": None}])


@pytest.mark.parametrize(
    ("message", "field", "wrong"),
    [
        (ClockPing(1, 2), "ring", 1.0),
        (ClockPing(1, 2), "ring", True),
        (ClockPing(1, 2), "ring", "1"),
        (ClockPing(1, 2), "ring", None),
        (StateRequest(), "asked_s", "1"),
        (StateRequest(), "asked_s", True),
        (StateRequest(), "stack", 1),
        (STATE, "members", [0, "1"]),
        (STATE, "members", 3),
        (STATE, "outstanding", "ab"),
        (STATE, "interrupt_stage", "unheard of"),
        (STATE, "interrupt_stage", None),
        (EMPTY, "kinds", ["screen"]),
        (EMPTY, "kinds", [["stdout"]]),
        (EMPTY, "kinds", "stdout"),
        (EMPTY, "kinds", ["stdout"]),  # without its iteration and length
        (EMPTY, "characters", [3]),
        (CellEnded(1, None, "", 0, 0, {}, True, None), "calls", {"x": 1}),
        (CellEnded(1, None, "", 0, 0, {}, True, None), "calls", {"1": "1"}),
        (CellEnded(1, None, "", 0, 0, {}, True, None), "error", {"name": "E"}),
        (CellEnded(1, None, "", 0, 0, {}, True, None), "error", "E"),
    ],
)
def test_a_value_that_is_nearly_right_is_refused(message, field, wrong):
    """Numbers, text and truth values are not taken for each other, nor anything for a list."""
    with pytest.raises(WireError, match=field):
        changed(message, field, wrong)


def test_an_integer_is_a_number_of_seconds():
    """JSON has one kind of number: where a float belongs, an integer is read as one."""
    assert changed(StateRequest(), "asked_s", 2) == StateRequest(2.0)


def changed(message, field, value):
    """Return what is read where a field of the encoded message has another value."""
    version, name, content, *frames = message.encode()
    content = json.dumps(json.loads(content) | {field: value}).encode()
    return Message.decode([version, name, content, *frames])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_missing_and_unknown_fields_are_refused(message):
    """A message with a field less, or one more, is not read."""
    version, name, content, *frames = message.encode()
    fields = json.loads(content)
    broken = [{key: fields[key] for key in fields if key != gone} for gone in fields]
    for changed in [*broken, fields | {"another": 1}, [], None, 5]:
        with pytest.raises(WireError):
            Message.decode([version, name, json.dumps(changed).encode(), *frames])


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (ClockPing(1, 2), 1),
        (EMPTY, 0),
        (EMPTY, 2),
        (CellEnded(1, None, "", 0, 0, {}, True, b"v"), 2),
    ],
)
def test_a_wrong_number_of_binary_frames_is_refused(message, frames):
    """Bytes that belong to no field, and bytes that are missing, are a WireError."""
    with pytest.raises(WireError, match=f"{frames} binary frames"):
        Message.decode([*message.encode()[:3], *[b"x"] * frames])


def test_another_version_says_what_to_do():
    """A message of another version names both versions and the way out."""
    with pytest.raises(WireError, match=rf"version 1: .*version {VERSION}\. Install the same"):
        Message.decode([b"\x01", *ClockPing(1, 2).encode()[1:]])


def test_integers_of_numpy_are_sent():
    """Ranks of a process set may be NumPy's integers."""
    state = dataclasses.replace(STATE, members=(np.int64(0), np.int32(3)))
    assert Message.decode(state.encode()).members == (0, 3)


def test_output_is_cut_into_its_pieces():
    """Pieces are counted in characters, not bytes; what is not UTF-8 is replaced."""
    text = "äö".encode() + b"a\xffb"
    output = Output(1, ("stdout", "stderr"), (0, 1), (2, 3), None, text)
    assert list(output.pieces()) == [("stdout", 0, "äö"), ("stderr", 1, "a�b")]
