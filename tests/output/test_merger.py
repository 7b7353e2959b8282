"""Output of several ranks becomes one text: equal lines once, none lost, order kept."""

import random

import pytest

from workbench.output.merger import OutputMerger
from workbench.output.sink import TextSink
from workbench.ranks import label


def fold(script, ranks=(0, 1), hold_s=0.15):
    """Play (seconds, rank, stream, text) and return the text, everything ended at last."""
    folder, sink = OutputMerger(ranks, hold_s), TextSink()
    for at, rank, stream, text in script:
        folder.text(rank, stream, text, at)
        for folded in folder.ready(at):
            sink.put(folded)
    for rank in ranks:
        folder.end(rank, 1e6)
    for folded in folder.ready(1e6):
        sink.put(folded)
    sink.note("")  # ends an unfinished line
    return sink.text


def test_equal_lines_are_one():
    """Lines that both ranks say appear once, with both ranks."""
    text = fold([(0, 0, "stdout", "a\nb\n"), (0.01, 1, "stdout", "a\nb\n")])
    assert text == "[ranks 0-1] a\n[ranks 0-1] b\n"


def test_different_lines_stay_apart():
    """Each rank's own line is marked with that rank."""
    text = fold([(0, 0, "stdout", "zero\n"), (0.01, 1, "stdout", "one\n")])
    assert text == "[rank 0] zero\n[rank 1] one\n"


def test_a_line_of_one_rank_does_not_break_the_others_fold():
    """A warning that only rank 1 says leaves the epochs of both folded."""
    text = fold(
        [(0, 0, "stdout", "epoch 1\nepoch 2\n"), (0.01, 1, "stdout", "warn\nepoch 1\nepoch 2\n")]
    )
    assert text == "[rank 1] warn\n[ranks 0-1] epoch 1\n[ranks 0-1] epoch 2\n"


def test_a_line_waits_for_the_others_only_a_moment():
    """A line is shown after the hold time even if the other rank writes nothing."""
    folder = OutputMerger((0, 1), hold_s=0.15)
    folder.text(0, "stdout", "a\n", 10.0)
    assert list(folder.ready(10.1)) == []
    assert [folded.ranks for folded in folder.ready(10.2)] == [(0,)]


def test_a_line_without_an_end_appears_too():
    """A prompt is shown while it waits; what follows continues in the same line."""
    text = fold([(0, 0, "stdout", "working"), (1, 0, "stdout", "..."), (2, 0, "stdout", "done\n")])
    assert text == "[rank 0] working...done\n"


def test_another_rank_breaks_an_unfinished_line():
    """Pieces of two ranks are never in one line."""
    text = fold([(0, 0, "stdout", "abc"), (1, 1, "stdout", "xyz\n"), (2, 0, "stdout", "def\n")])
    assert text == "[rank 0] abc\n[rank 1] xyz\n[rank 0] def\n"


def test_the_end_of_a_line_that_another_rank_broke_is_no_line_of_its_own():
    """Both ranks write a line in two pieces; an empty line that follows one is kept."""
    text = fold(
        [
            (0, 0, "stdout", "zero"),
            (0, 1, "stdout", "one"),
            (1, 0, "stdout", "\n"),
            (1, 1, "stdout", "\n"),
            (2, 1, "stdout", "\n"),
        ]
    )
    assert text == "[rank 0] zero\n[rank 1] one\n[rank 1] \n"


def test_a_progress_bar_overwrites_itself():
    """Carriage returns are kept, each with its mark."""
    text = fold([(0, 0, "stdout", "\r10%\r20%\n"), (0, 1, "stdout", "\r10%\r20%\n")])
    assert text.replace("\r", "<") == "[ranks 0-1] <[ranks 0-1] 10%<[ranks 0-1] 20%\n"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_and_order_is_kept(seed):
    """However the text is divided into pieces, all lines of each rank are there, in order."""
    chance = random.Random(seed)
    said = {rank: [f"line {chance.randint(0, 5)}" for _ in range(60)] for rank in range(4)}
    streams = {rank: "".join(line + "\n" for line in lines) for rank, lines in said.items()}
    script, at = [], 0.0
    while any(streams.values()):
        rank = chance.choice([rank for rank in streams if streams[rank]])
        size = chance.randint(1, 40)
        script.append((at, rank, "stdout", streams[rank][:size]))
        streams[rank] = streams[rank][size:]
        at += chance.random() * 0.05
    heard = {rank: [] for rank in said}
    open_text = dict.fromkeys(said, "")
    folder = OutputMerger(said, 0.15)

    def take(now):
        for folded in folder.ready(now):
            for rank in folded.ranks:
                open_text[rank] += folded.item.text

    for moment, rank, stream, text in script:
        folder.text(rank, stream, text, moment)
        take(moment)
    for rank in said:
        folder.end(rank, 1e6)
    take(1e6)
    for rank in said:
        heard[rank] = open_text[rank].splitlines()
    assert heard == said


def test_labels():
    """Ranks are written as people write them."""
    assert label([0]) == "[rank 0]"
    assert label([3, 0, 1, 2, 7]) == "[ranks 0-3,7]"
