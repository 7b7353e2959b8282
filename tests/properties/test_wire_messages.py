"""The codecs between kernel, ranks and agents: every value survives, any bytes have one error."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import time
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import damaged_bytes, damaged_json, instances, json_values

import workbench.wire
from workbench.errors import WireError
from workbench.wire import Flag, IterationRecord, Layout, Message, agent_messages
from workbench.wire.agent_messages import MARK, MessageReader, encode
from workbench.wire.message import VERSION
from workbench.wire.rank_messages import Output
from workbench.wire.record import NUMBERS, SIGNED, TIMES
from workbench.wire.record_columns import decode, unpack

for one in pkgutil.iter_modules(workbench.wire.__path__):
    importlib.import_module(f"workbench.wire.{one.name}")
CLASSES = sorted(Message.__subclasses__(), key=lambda cls: cls.__name__)
AGENT_CLASSES = [
    cls
    for cls in vars(agent_messages).values()
    if dataclasses.is_dataclass(cls) and cls.__module__ == agent_messages.__name__
]
HEADER = bytes([VERSION])


outputs = st.builds(
    lambda cell, pieces, total, text: Output(
        cell, *(zip(*pieces, strict=True) if pieces else ((), (), ())), total, text
    ),
    st.integers(),
    st.lists(st.tuples(st.sampled_from(("stdout", "display")), st.integers(), st.integers())),
    st.none() | st.integers(),
    st.binary(),
)


def of(cls):
    return outputs if cls is Output else instances(cls)


@given(st.data())
def test_messages_of_ranks_survive(data):
    for one in CLASSES:
        message = data.draw(of(one))
        assert Message.decode(message.encode()) == message


@given(st.lists(st.binary(max_size=30), max_size=6))
@example([])
@example([b""])
@example([HEADER, b"ClockPing"])
@example([HEADER, b"\xff", b"{}"])
@example([HEADER, b"ClockPing", b"[" * 100_000])
def test_any_frames(frames):
    decoded_or_refused(frames)


@given(st.data())
def test_damaged_messages_of_ranks(data):
    """A valid message in which fields have other values, and bytes are damaged."""
    frames = data.draw(st.sampled_from(CLASSES).flatmap(of)).encode()
    plain = json.loads(frames[2])
    frames[2] = data.draw(damaged_json(plain)).encode()
    decoded_or_refused(frames)
    place = data.draw(st.integers(0, len(frames) - 1))
    frames[place] = data.draw(damaged_bytes(frames[place]))
    decoded_or_refused(frames)
    decoded_or_refused(data.draw(st.permutations(frames)))


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "NaN"])
def test_numbers_that_no_float_has(number):
    """One of 400 digits was an OverflowError, which ended the reader of an agent's messages."""
    fields = f'{{"asked_s": {number}, "stack": false, "for_stall_report": false}}'
    decoded_or_refused([HEADER, b"StateRequest", fields.encode()])
    line = MARK + f'["Attach", {{"session": "", "silence_s": {number}}}]\n'.encode()
    MessageReader().feed(line)


def decoded_or_refused(frames):
    try:
        message = Message.decode(list(frames))
    except WireError as error:
        text = str(error)
        assert len(text) < 600
        return
    again = Message.decode(message.encode())
    assert again == message or "nan" in repr(message)


@given(st.data())
def test_messages_of_agents_survive(data):
    messages = [data.draw(instances(cls)) for cls in AGENT_CLASSES]
    assert MessageReader().feed(b"".join(map(encode, messages))) == messages


@given(st.data())
def test_a_stream_is_read_the_same_in_any_pieces(data):
    """Messages, lines of a login shell and damaged messages, cut anywhere."""
    plain = st.builds(
        lambda name, fields: MARK + json.dumps([name, fields]).encode() + b"\n",
        st.sampled_from([cls.__name__ for cls in AGENT_CLASSES]) | json_values,
        json_values,
    )
    message = st.sampled_from(AGENT_CLASSES).flatmap(instances).map(encode)
    line = message | message.flatmap(damaged_bytes) | plain | st.binary(max_size=30)
    stream = b"".join(data.draw(st.lists(line, max_size=5)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    others, pieces = ([], [])
    whole = MessageReader(others.append).feed(stream)
    reader = MessageReader(pieces.append)
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[begin:end])
    assert repr(found) == repr(whole)
    assert pieces == others


def test_a_long_line_takes_time_in_proportion_to_its_length():
    """A reader joined all that it had with each piece: 32 MB took 45 s."""

    def cpu_s(pieces):
        reader, piece = MessageReader(), b"x" * (1 << 14)
        began = time.process_time()
        for _ in range(pieces):
            assert reader.feed(piece) == []
        reader.feed(b"\n")
        return time.process_time() - began

    long_s, short_s = (min(cpu_s(pieces) for _ in range(3)) for pieces in (2_048, 256))
    assert long_s < 32 * max(short_s, 0.01)


counts = st.integers(0, 5)
times = st.integers(0, 2**32 - 1)


@st.composite
def records(draw):
    """Records as a rank makes them: collectives with the same end travel in the same buffer."""
    count = draw(counts)
    columns = {
        name: array("I", draw(st.lists(times, min_size=count, max_size=count))) for name in TIMES
    }
    # what shares a buffer has the same times in it
    buffers = {}
    for place in range(count):
        key = columns["responded"][place], columns["ended"][place]
        columns["began"][place] = buffers.setdefault(key, columns["began"][place])
    numbers = {
        name: draw(st.integers(0, (1 << SIGNED.get(name, 31)) - 1))
        for name in (*NUMBERS, "world_size", "stopped_ns", "transfer_ns", "messages_ns",
                     "samples", "batch", "batches", "communication_cpu_ns")
    }  # fmt: skip
    return IterationRecord(
        **numbers,
        dropped=draw(times),
        flags=Flag(draw(st.integers(0, 511))),
        layout=draw(st.integers(0, 2**16 - 1)),
        **columns,
    )


@given(records())
def test_records_survive(record):
    packed = record.pack()
    assert IterationRecord.unpack(packed) == record
    decoded = decode([packed])
    assert decoded.errors == []
    ((places, columns),) = decoded.groups
    assert places.tolist() == [0]
    assert unpack(columns, 0) == record


@given(st.lists(records().flatmap(lambda one: damaged_bytes(one.pack())) | st.binary(), max_size=4))
@example([b"", b"\x07", bytes([7]) * 400])
def test_any_bytes_as_records(given_):
    """One by one and together they are read the same, and the same ones are refused."""
    alone = {}
    errors = []
    for place, data in enumerate(given_):
        try:
            alone[place] = IterationRecord.unpack(data)
        except WireError as error:
            errors.append(str(error))
    decoded = decode(given_)
    together = {
        int(place): unpack(columns, row)
        for places, columns in decoded.groups
        for row, place in enumerate(places)
    }
    assert together == alone
    assert [str(error) for error in decoded.errors] == errors


@given(instances(Layout))
def test_a_layout_has_columns_of_one_length_or_is_refused(layout):
    lengths = {len(column) for column in vars(layout).values() if isinstance(column, tuple)}
    if len(lengths) == 1:
        assert layout.check() is layout
    else:
        with pytest.raises(WireError, match="damaged"):
            layout.check()
