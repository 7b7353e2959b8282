"""What the recorder makes of steps and collectives: cycles, intervals and packed records."""

import time

import numpy as np
import pytest

from workbench.rank.recording import collectives as collectives_module
from workbench.rank.recording.collectives import NONE, Collected, Operation, Reported
from workbench.rank.recording.durations import merge, overlap
from workbench.rank.recording.iteration import RecordedIteration, StepRecord
from workbench.rank.recording.pack import Packer
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.training_loop import Cycle
from workbench.wire import Flag, IterationRecord


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
    assert merge([(5, 6), (0, 2), (1, 3), (6, 7)]) == [(0, 3), (5, 7)]
    assert merge([(0, 5), (1, 2), (3, 4)]) == [(0, 5)]
    assert merge([]) == []
    assert overlap([(0, 3), (5, 7)], [(2, 6)]) == 2
    assert overlap([], [(2, 6)]) == 0
    assert overlap([(2, 6)], []) == 0


def test_the_overlap_of_random_intervals():
    """It is as long as if each moment were counted."""
    chance = np.random.default_rng(0)
    for _ in range(200):
        sets, moments = [], []
        for count in chance.integers(0, 6, 2):
            edges = np.sort(chance.integers(0, 40, 2 * count)).tolist()
            sets.append(merge(zip(edges[::2], edges[1::2], strict=True)))
            moments.append({t for a, b in sets[-1] for t in range(a, b)})
        assert overlap(*sets) == len(moments[0] & moments[1])
        assert sum(end - begin for begin, end in sets[0]) == len(moments[0])


def test_a_collective_that_had_ended_before_its_iteration():
    """It is waited for in a later iteration than the one in which it ran, whose time it is not."""
    reported = Reported()
    reported.add(Operation("a", 4, 1), 1100, 1200)
    step = StepRecord(2000, 3000, [0] * Phase.GAP, 0, [(2000, 2010)], [])
    ((_, packed),) = Packer([reported], 2, lambda: 0)([RecordedIteration(1, 0, [step])])
    record = IterationRecord.unpack(packed)
    assert (record.communication_ns, record.overlapped_ns, record.tensors) == (0, 0, 1)


class LittleMemory(Reported):
    """Has too little memory for its first results, as while a cell uses all of it."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def take_each(self, untils, handles):
        if self.failures:
            self.failures -= 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(collectives_module.np, "array", self.fail)
                super().take_each(untils, handles)
        return super().take_each(untils, handles)

    def fail(self, *_):
        raise MemoryError


def test_collectives_wait_for_memory():
    """They are returned once, when there is memory again."""
    reported = LittleMemory(3)
    reported.add(Operation("a", 4, 1), 2100, 2200)
    reported.add(Operation("later", 4, 1), 2900, 9000)
    step = StepRecord(2000, 3000, [0] * Phase.GAP, 0, [(2000, 2900)], [])
    pack = Packer([reported], 2, lambda: 0)
    packed = [record for _, record in pack([RecordedIteration(1, 0, [step])])]
    assert [IterationRecord.unpack(record).tensors for record in packed] == [1]
    assert reported.failures == 0
    assert pack.failed == 0
    assert [one.name for one in reported.take(10_000).operations] == ["later"]
    assert reported.take(10_000) is NONE


class Given:
    """Collectives of a library of which all times are known."""

    lost = 0

    def __init__(self, collected):
        self.collected = list(collected)

    def take_each(self, untils, _):
        return [self.collected.pop(0) for _ in untils]


def test_lost_collectives_are_no_dropped_iterations():
    """Some communication of the iterations that follow is not timed, and that is all."""
    given = Given([NONE] * 4)
    pack = Packer([given], 2, lambda: 7)
    found = []
    for index, lost in enumerate((0, 5, 5, 6)):
        given.lost = lost
        began = time.perf_counter_ns()
        step = StepRecord(began, began + 1000, [0] * Phase.GAP, 0, [], [])
        ((_, packed),) = pack([RecordedIteration(1, index, [step])])
        record = IterationRecord.unpack(packed)
        found.append((record.dropped, Flag.UNHEARD in record.flags))
    assert found == [(7, False), (7, True), (7, False), (7, True)]


def test_lost_collectives_may_be_of_any_earlier_iteration():
    """All iterations that began before the loss was noticed are marked, whenever they are sent."""
    given = Given([NONE] * 6)
    pack = Packer([given], 2, lambda: 0)
    began = time.perf_counter_ns()
    steps = [StepRecord(began + at, began + at + 1, [0] * Phase.GAP, 0, [], []) for at in range(4)]
    items = [RecordedIteration(1, index, [step]) for index, step in enumerate(steps)]
    given.lost = 3
    sent = [*pack(items[:2]), *pack(items[2:])]
    assert all(Flag.UNHEARD in IterationRecord.unpack(packed).flags for _, packed in sent)


def collectives(chance, start):
    """Random collectives of an iteration, some of them in the same buffer or from before."""
    count = int(chance.integers(0, 12))
    buffers = np.sort(chance.integers(0, 4_000_000, (5, 3)), axis=1).T + start
    of = chance.integers(0, 5, count)
    submitted = np.minimum(buffers[0, of], start + chance.integers(-900_000, 4_000_000, count))
    finished = buffers[2, of] + chance.integers(0, 50_000, count)
    times = [submitted, buffers[0, of], buffers[1, of], buffers[2, of], finished]
    operations = tuple(
        Operation(str(place), 4, 1, library="GLOO_ALLREDUCE") for place in chance.permutation(count)
    )
    return Collected(operations, np.array(times, np.int64))


@pytest.mark.parametrize("seed", range(20))
def test_iterations_that_are_packed_together(seed):
    """Their records are the same as of each alone."""
    chance = np.random.default_rng(seed)
    items, done = [], []
    for index in range(int(chance.integers(2, 20))):
        start = 10**12 + index * 5_000_000
        edges = np.sort(chance.integers(start, start + 5_000_000, 2 * chance.integers(0, 4)))
        waits = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        spent = chance.integers(0, 10**6, Phase.GAP).tolist()
        step = StepRecord(start, start + 5_000_000, spent, 0, waits, [])
        items.append(RecordedIteration(1, index, [step]))
        done.append(collectives(chance, start))
    together = list(Packer([Given(done)], 2, lambda: 0)(items))
    alone = Packer([Given(done)], 2, lambda: 0)
    assert together == [packed for item in items for packed in alone([item])]
    records = [IterationRecord.unpack(packed) for _, packed in together]
    assert sum(record.transfer_ns for record in records) > 0
    assert sum(record.overlapped_ns for record in records) > 0
