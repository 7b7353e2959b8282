"""Records that arrive together are stored as if each had come alone."""

import random
from array import array
from dataclasses import replace

import numpy as np
import pytest
from timers import FAR_S

from workbench.errors import WireError
from workbench.timings import Timings
from workbench.timings.arrow_files import records_to_batch
from workbench.timings.cell_clocks import CellClocks
from workbench.timings.collective_records import MAX_COLLECTIVE_RECORDS, RecordBlock
from workbench.timings.frame import collectives
from workbench.timings.run import open_run
from workbench.timings.store import ROW, Store
from workbench.wire import Flag, IterationRecord, Layout, Outbox
from workbench.wire.rank_messages import Records
from workbench.wire.record import SIGNED, TIMES
from workbench.wire.record_columns import decode, times_of, unpack

FLAGS = [Flag.NONE, Flag.FIRST_OF_CELL, Flag.OUTSIDE, Flag.UNHEARD, Flag.DEVICE_TIMES]


def some_layout(chance, number, count):
    return Layout(
        number,
        tuple(f"{chance.choice('abc')}{at}" for at in range(count)),
        tuple(chance.randrange(1, 10**6) for _ in range(count)),
        (1,) * count,
        ("allreduce",) * count,
        (chance.choice([0, 0, 3]),) * count,
        (2,) * count,
        ("optimizer",) * count,
        tuple(chance.choice(["GLOO_ALLREDUCE", ""]) for _ in range(count)),
    )


def some_record(chance, cell, index, layout, dropped):
    count = len(layout.names) if layout is not None else 0
    buffers = [sorted(chance.randrange(2**32) for _ in range(3)) for _ in range(1 + count // 3)]
    of_collective = sorted(chance.choice(buffers) for _ in range(count))
    columns = zip(*of_collective, strict=True) if count else ((),) * 3
    times = dict(zip(TIMES[1:-1], columns, strict=True))
    times["submitted"] = [chance.randrange(2**32) for _ in range(count)]
    times["finished"] = [chance.randrange(2**32) for _ in range(count)]
    return IterationRecord(
        cell, index, *(chance.randrange(2**40) for _ in range(12)),
        tensors=count, world_size=2, dropped=dropped, flags=chance.choice(FLAGS),
        layout=0 if layout is None else layout.number, stopped_ns=chance.randrange(2**40),
        transfer_ns=chance.randrange(2**40),
        **{name: array("I", values) for name, values in times.items()},
    )  # fmt: skip


def some_training(seed):
    """What three ranks send in a random order; one starts late, and layouts change."""
    chance = random.Random(seed)
    sent, layouts, dropped = [], {}, dict.fromkeys(range(3), 0)
    index = dict.fromkeys(((cell, rank) for cell in range(1, 4) for rank in range(3)), 0)
    for turn in range(chance.randrange(20, 60)):
        rank = chance.randrange(2 if turn < 15 else 3)
        cell = min(3, 1 + turn // 20 + chance.randrange(2))
        if chance.random() < 0.3:
            layout = some_layout(chance, chance.randrange(3), chance.choice([0, 1, 4, 40]))
            layouts[rank, layout.number] = layout
            sent.append(((rank,), layout))
        packed = []
        for _ in range(chance.randrange(4)):
            number = chance.randrange(3)
            dropped[rank] += chance.randrange(2)
            known = layouts.get((rank, number)) or some_layout(chance, number, 2)
            record = some_record(chance, cell, index[cell, rank], known, dropped[rank])
            index[cell, rank] += 1
            packed.append(record.pack())
            if chance.random() < 0.1:
                packed.append(chance.choice([damaged(chance, packed[-1]), b"", b"\x63"]))
        sent.append(((rank,) * len(packed), packed))
    return sent


def damaged(chance, packed):
    place = chance.choice([0, 2, 3, 40, len(packed) - 1])
    changed = bytearray(packed)
    changed[place] = chance.randrange(256)
    return chance.choice([bytes(changed), packed[: chance.randrange(len(packed))], packed + b"x"])


def one_at_a_time(sent):
    """A store that has received each layout and record alone, and its errors."""
    store, errors = Store(), []
    for ranks, content in sent:
        if isinstance(content, Layout):
            store.add_all([(ranks, content)])
        for rank, record in zip(ranks, content if not isinstance(content, Layout) else ()):  # noqa: B905
            errors += store.add_all([((rank,), (record,))])
    return store, errors


def expected_rows(sent):
    """The rows, computed from single records without the store."""
    first, latest, rows = {}, 0, []
    for ranks, content in sent:
        for rank, packed in zip(ranks, () if isinstance(content, Layout) else content):  # noqa: B905
            try:
                record = IterationRecord.unpack(packed)
            except WireError:
                continue
            if record.flags & Flag.OUTSIDE:
                continue
            number = first.setdefault(record.cell, latest) + record.index
            latest = max(latest, number + 1)
            marks = [min(record.submitted, default=0), max(record.submitted, default=0)]
            rows.append(
                (number, rank, record.cell, record.start_ns, record.duration_ns, record.data_ns,
                 record.exposed_ns, record.stopped_ns, record.transfer_ns,
                 *(mark * 100 for mark in marks),
                 max(record.finished, default=0) * 100, record.size_bytes, int(record.flags))
            )  # fmt: skip
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_together_is_as_one_at_a_time(seed):
    """Rows, collectives, counts and errors are the same, whatever arrives with what."""
    sent = some_training(seed)
    single, errors = one_at_a_time(sent)
    chance, together, found = random.Random(seed), Store(), []
    at = 0
    while at < len(sent):
        size = chance.randrange(1, 20)
        found += together.add_all(sent[at : at + size])
        at += size
    assert list(map(str, found)) == list(map(str, errors))
    assert together.rows().tobytes() == single.rows().tobytes()
    names = [
        *("iteration", "rank", "cell", "start_ns", "iteration_ns", "data_ns", "exposed_ns"),
        *("stopped_ns", "transfer_ns", "first_ns", "last_ns", "done_ns", "bytes", "flags"),
    ]
    assert [tuple(row[name] for name in names) for row in together.rows()] == expected_rows(sent)
    assert collectives(together.collectives.between()).equals(
        collectives(single.collectives.between())
    )
    assert together.counts.dropped_by_rank == single.counts.dropped_by_rank
    for cell in range(1, 4):
        assert together.counts.unheard(cell) == single.counts.unheard(cell)
        for rank in range(3):
            assert together.counts.arrived(cell, rank) == single.counts.arrived(cell, rank)
            assert together.counts.iterations(cell, rank) == single.counts.iterations(cell, rank)


@pytest.mark.parametrize("seed", range(40))
def test_columns_are_the_records(seed):
    """Each column has what `IterationRecord.unpack` reads; what it refuses is refused."""
    packed = [
        one for _, content in some_training(seed) if isinstance(content, list) for one in content
    ]
    decoded = decode(packed)
    read = {}
    for places, columns in decoded.groups:
        times = {name: times_of(columns, name) for name in TIMES}
        for at, place in enumerate(places.tolist()):
            record = unpack(columns, at)
            read[place] = record
            assert {name: times[name][at].tolist() for name in TIMES} == {
                name: getattr(record, name).tolist() for name in TIMES
            }
            assert all(columns[name][at] == getattr(record, name) for name in SIGNED)
            assert columns["flags"][at] == record.flags
    refused = []
    for place, one in enumerate(packed):
        try:
            assert read.get(place) == IterationRecord.unpack(one)
        except WireError as error:
            refused.append(str(error))
            assert place not in read
    assert list(map(str, decoded.errors)) == refused


@pytest.mark.parametrize(("name", "value"), [("cell", 1 << 31), ("start_ns", 1 << 63)])
def test_a_number_that_no_row_can_hold_is_refused(name, value):
    """It is damage, and costs no other record."""
    good = some_record(random.Random(0), 1, 0, some_layout(random.Random(0), 0, 3), 0)
    bad = some_record(random.Random(0), 1, 1, some_layout(random.Random(0), 0, 3), 0)
    setattr(bad, name, value)
    store = Store()
    (error,) = store.add_all([((0, 0), (bad.pack(), good.pack()))])
    assert "out of range" in str(error)
    assert store.counts.arrived(1, 0) == 1


def test_a_layout_with_columns_of_different_lengths_is_refused():
    """Other ranks' records that arrive with it are stored."""
    timings = Timings()
    timings.listen()
    layout = some_layout(random.Random(0), 0, 3)
    wrong = replace(layout, libraries=("GLOO_ALLREDUCE",))
    record = some_record(random.Random(0), 1, 0, layout, 0)
    record.flags = Flag.NONE
    outboxes = [Outbox(timings.address_for(rank)) for rank in range(2)]
    try:
        timings.begin_cell(1)
        for outbox, one in zip(outboxes, (wrong, layout), strict=True):
            outbox.send(one)
            outbox.send(Records((record.pack(),)))
        assert timings.end_cell(1, {0: 1, 1: 1}, timeout_s=FAR_S)
        assert sorted(timings.rows()["rank"].tolist()) == [0, 1]
        assert {one.rank for one in timings.records()} == {1}
        assert "between 1 and 3 collectives" in timings.errors[0]
    finally:
        for outbox in outboxes:
            outbox.close()
        timings.close()


def test_memory_holds_the_newest_collectives():
    """The limit holds however records arrive; what is read from an index on is complete."""
    layout = some_layout(random.Random(0), 0, 1)
    record = some_record(random.Random(0), 1, 0, layout, 0).pack()
    store, total = Store(), 0
    store.add_layout(0, layout)
    for size in (20, 20_000, 3, 700, 20_000, 5, 12_345):
        store.add_all([((0,) * size, (record,) * size)])
        total += size
        first, block = store.collectives.read(0)
        assert first == max(0, total - MAX_COLLECTIVE_RECORDS)
        assert len(block) == total - first == len(store.collectives.between())
        for newest in (0, 7):
            first, block = store.collectives.read(total - newest)
            assert (first, len(block)) == (total - newest, newest)


def test_a_run_has_what_arrived_in_any_mixture(tmp_path):
    """Records of several layouts in one message are written as they are read from memory."""
    chance = random.Random(3)
    timings = Timings()
    timings.listen()
    timings.keep("mixed", [{"rank": 0, "vm": "vm1"}], folder=tmp_path)
    outbox = Outbox(timings.address_for(0))
    try:
        timings.begin_cell(1)
        layouts = [some_layout(chance, number, count) for number, count in enumerate([3, 40, 1])]
        for layout in layouts:
            outbox.send(layout)
        mixture = [some_record(chance, 1, at, chance.choice(layouts), 0) for at in range(200)]
        for at in range(0, 200, 40):
            outbox.send(Records(tuple(one.pack() for one in mixture[at : at + 40])))
        assert timings.end_cell(1, {0: 200}, timeout_s=FAR_S)
    finally:
        outbox.close()
        timings.close()
    run = open_run(timings.path)
    assert [vars(one.record) for one in run.records()] == [vars(one) for one in mixture]
    assert run.collectives().equals(timings.collectives())
    assert run.to_frame().equals(timings.to_frame())


def test_a_block_of_no_records():
    """It can be joined and read."""
    block = RecordBlock.join([])
    assert len(block) == 0
    assert list(block) == []


def test_clocks_of_no_rows():
    """Before the first row there is nothing to align."""
    clocks = CellClocks()
    clocks.begin_cell(1)
    rows = np.zeros(0, ROW)
    clocks.align(rows)
    assert len(rows) == 0


def test_a_file_has_the_times_of_records_with_different_numbers_of_collectives():
    """One, two and three in a batch: two are the mean, and not the usual number."""
    chance, store, records = random.Random(0), Store(), []
    for number, count in enumerate((1, 2, 3)):
        some = some_layout(chance, number, count)
        store.add_layout(0, some)
        records.append(some_record(chance, 1, number, some, 0))
        store.add(0, records[-1])
    _, block = store.collectives.read(0)
    batch = records_to_batch(block, [0, 1, 2])
    assert batch.num_rows == 3
    for name in TIMES:
        written = batch.column(batch.schema.get_field_index(name)).to_pylist()
        assert written == [list(getattr(record, name)) for record in records]
