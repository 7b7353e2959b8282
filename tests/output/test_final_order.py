"""The final order of a cell's output follows from what ranks said, not from when it came."""

import random
import re
import sys

import pytest

from workbench.output.final_order import OutputLog
from workbench.output.merger import OutputMerger
from workbench.output.sink import TextSink


def merged(said, iterations=None):
    """Merge texts by rank; `iterations` has each rank's iteration at its lines."""
    log = OutputLog(list(said))
    for rank, text in said.items():
        for at, line in enumerate(text.splitlines(keepends=True)):
            log.ranks[rank].text("stdout", line, iterations[rank][at] if iterations else 0)
    return text_of(log)


def text_of(log):
    sink = TextSink()
    finish(log, sink)
    return sink.text


def finish(log, sink):
    """Show the rest of the output; return its items."""
    items = []
    for chunk in log.rest():
        sink.put_final(chunk)
        items += chunk
    sink.finish()
    return items


def test_equal_lines_are_one_however_late():
    """A rank that says the same lines a minute later is merged all the same."""
    text = merged({0: "a\nb\n", 1: "a\nb\n", 2: "a\nb\n"})
    assert text == "[ranks 0-2] a\n[ranks 0-2] b\n"


def test_a_rank_with_a_line_more():
    """A line that only one rank prints leaves the others merged, wherever it comes."""
    assert merged({0: "a\nb\nc\n", 1: "a\nwarn\nb\nc\n"}) == (
        "[ranks 0-1] a\n[rank 1] warn\n[ranks 0-1] b\n[ranks 0-1] c\n"
    )


def test_different_lines_alternate():
    """Ranks that print their own loss take turns."""
    said = {rank: "".join(f"epoch {e}: {rank}\n" for e in range(3)) for rank in range(2)}
    assert [line[6] for line in merged(said).splitlines()] == ["0", "1"] * 3


def test_lines_of_one_iteration_are_together():
    """A warning of rank 1 in the third iteration is placed there, not at the beginning."""
    said = {0: "a0\na1\na2\na3\n", 1: "warn\n"}
    text = merged(said, {0: [0, 1, 2, 3], 1: [2]})
    assert [line.split()[-1] for line in text.splitlines()] == ["a0", "a1", "a2", "warn", "a3"]


def test_crossed_lines_lose_nothing():
    """X before the others in one rank and after them in another: still in each rank's order."""
    lines = "".join(f"l{at}\n" for at in range(100))
    text = merged({0: "x\n" + lines, 1: lines + "x\n"})
    assert text.count("[ranks 0-1]") >= 98


@pytest.mark.parametrize("seed", range(20))
def test_the_order_does_not_depend_on_timing(seed):
    """However the pieces arrive, and in which order, the text is the same; no rank loses a line."""
    chance = random.Random(seed)
    said = {
        rank: "".join(
            f"line {chance.randint(0, 5)}" + chance.choice(["\n", "\n", "\r\n", "\r"])
            for _ in range(60)
        )
        for rank in range(4)
    }
    texts = set()
    for _ in range(5):
        log = OutputLog(list(said))
        left = dict(said)
        while any(left.values()):
            rank = chance.choice([rank for rank in left if left[rank]])
            size = chance.randint(1, 40)
            log.ranks[rank].text("stdout", left[rank][:size], 0)
            left[rank] = left[rank][size:]
        sink = TextSink()
        items = finish(log, sink)
        texts.add(sink.text)
        for rank, text in said.items():
            heard = "".join(f.item.text for f in items if rank in f.ranks)
            shown = re.sub(r"[^\r\n]*\r(?=[^\r\n])", "", text.replace("\r\n", "\n"))
            assert heard == shown  # what a carriage return writes over is not there
    assert len(texts) == 1


def test_a_note_follows_what_came_before_it():
    """A note of the kernel while the cell runs is in the text, in its place."""
    log = OutputLog([0, 1])
    for rank in (0, 1):
        log.ranks[rank].text("stdout", "a\n", 0)
    log.note("rank 1 has not joined\n")
    for rank in (0, 1):
        log.ranks[rank].text("stdout", "b\n", 0)
    assert text_of(log) == "[ranks 0-1] a\nrank 1 has not joined\n[ranks 0-1] b\n"


@pytest.mark.slow
def test_the_work_is_linear():
    """The calls per line do not grow with the lines, for many ranks whose lines differ too."""

    def cost(lines, ranks):
        log = OutputLog(range(ranks))
        for rank in range(ranks):
            text = "".join(f"{at} {rank if at % 2 else ''}\n" for at in range(lines))
            log.ranks[rank].text("stdout", text, 0)
        return calls_of(lambda: list(log.rest())) / lines / ranks

    few = cost(500, 16)
    assert cost(5000, 16) < 1.5 * few
    assert cost(125, 64) < 1.5 * few


def calls_of(function):
    """How many functions a function calls, all in all."""
    count = 0

    def called(_frame, event, _arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.slow
def test_a_flood_in_reversed_order_is_linear():
    """Ranks that never agree cost no more."""

    def cost(lines):
        log = OutputLog([0, 1])
        own = [f"{at}\n" for at in range(lines)]
        log.ranks[0].text("stdout", "".join(own), 0)
        log.ranks[1].text("stdout", "".join(reversed(own)), 0)
        return calls_of(lambda: list(log.rest())) / lines

    assert cost(30_000) < 1.5 * cost(3_000)


def test_ranks_that_are_seen_to_lag_are_waited_for():
    """After one line that came late for the second rank, the next lines are delayed longer."""
    folder = OutputMerger((0, 1))
    shown = []
    for at in range(4):
        for rank, late in ((0, 0.0), (1, 0.3)):
            now = at + late
            if rank:
                shown += folder.ready(now - 0.05)
            folder.text(rank, "stdout", f"epoch {at}\n", now)
            shown += folder.ready(now)
    assert [folded.ranks for folded in shown] == [(0,), (1,), (0, 1), (0, 1), (0, 1)]
