"""Cells that print as fast as they can: they end when they have ended, whoever writes."""

import os
import random
import re
import signal
import threading
import time

import psutil
import pytest
from clusters import quiet
from levels import in_soak
from timers import FAR_S, eventually, when

from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, RanksFailed
from workbench.output.bounded_text import BoundedText
from workbench.output.excerpt import Excerpt
from workbench.output.final_order import OutputLog
from workbench.output.merger import Item, MergedItem
from workbench.rank.window import TOTAL_CHARACTERS

FLOOD = """
import time
until, at = time.monotonic() + {seconds}, 0
while time.monotonic() < until:
    {line}
    at += 1
at, time.time()
"""
ENDLESS = "at = 0\nwhile True:\n    print('line', at)\n    at += 1"


@pytest.fixture
def usable(cluster):
    """The cluster, which is ready again after the test."""
    yield cluster
    if not eventually(lambda: cluster.state == "ready"):
        cluster.restart()


FLOODS = {
    "equal": ("print('line', at)", "[ranks 0-1] line 0"),
    "different": ("print('line', at, rank)", "[rank 0] line 0 0"),
    "one rank": ("rank or print('line', at)", "[rank 0] line 0"),
    "mixed": ("print('line', at if at % 10 else (rank, at))", "[rank 0] line (0, 0)"),
}
"""What ranks print again and again, and the first line that is shown, by name."""


@pytest.mark.timing
@pytest.mark.parametrize("seconds", [1, in_soak(4)])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_with_its_cell(cluster, name, seconds):
    """The call ends with the code, not some floods later."""
    line, _ = FLOODS[name]
    result = quiet(cluster, FLOOD.format(seconds=seconds, line=line))
    after_s = time.time() - max(ended for _, ended in result.values.values())
    assert after_s < 4 * seconds


@pytest.mark.parametrize("seconds", [1, in_soak(4)])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_complete(cluster, name, seconds):
    """The output has every line of every rank, and the kernel's memory stays bounded."""
    line, first = FLOODS[name]
    before = psutil.Process().memory_info().rss
    result = quiet(cluster, FLOOD.format(seconds=seconds, line=line))
    assert psutil.Process().memory_info().rss - before < 300 << 20
    lines = result.output.splitlines()
    assert lines[0] == first
    said = [at if rank == 0 or not line.startswith("rank") else 0
            for rank, (at, _) in sorted(result.values.items())]  # fmt: skip
    heard = [0, 0]
    for one in lines:
        mark, _, text = one.partition("] ")
        if text.startswith("line"):  # and not the cell's value
            heard[0] += mark != "[rank 1"
            heard[1] += mark != "[rank 0"
    assert heard == said


@pytest.mark.parametrize("seconds", [1, in_soak(3)])
def test_it_is_shown_while_it_runs(cluster, tmp_path, seconds):
    """No rank is ever far ahead of what is shown: the live output does not stop."""
    shown, ahead = [0, 0], []

    class Sink(TextSink):
        def put(self, merged):
            super().put(merged)
            for rank in merged.ranks:
                shown[rank] += len(merged.item.text)
                written = int.from_bytes((tmp_path / str(rank)).read_bytes(), "little")
                ahead.append(written - shown[rank])

    begin = f"""
import os
file, total = os.open(f"{tmp_path}/{{rank}}", os.O_RDWR | os.O_CREAT), 0
def say(text):
    global total
    print(text)
    total += len(text) + 1
    os.pwrite(file, total.to_bytes(8, "little"), 0)
"""
    cluster.run(begin + FLOOD.format(seconds=seconds, line="say(f'line {at} {rank}')"), sink=Sink())
    assert len(ahead) > 1000
    # what is confirmed may still be merged: some times the limit, however long the flood
    assert max(ahead) < 4 * TOTAL_CHARACTERS


class Counting(TextSink):
    """Counts what it is given."""

    count = 0

    def put(self, merged):
        self.count += 1
        super().put(merged)


def test_a_flood_is_interrupted(usable, ctrl_c):
    """The stop button ends a rank that waits for the kernel."""
    main = threading.main_thread().ident
    sink = Counting()
    waiter = when(lambda: sink.count > 3_000, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(CellInterrupted) as raised:
        usable.run(ENDLESS, sink=sink)
    waiter.join()
    # an interrupt may come in the middle of a print()
    said = re.findall(
        r"^(?:\[rank 0\]|\[ranks 0-1\]) line (\d+)$", raised.value.output, re.MULTILINE
    )
    numbers = [int(number) for number in said]
    assert len(numbers) > 1000
    assert numbers == list(range(len(numbers)))
    assert quiet(usable, "rank").values == {0: 0, 1: 1}


def test_a_rank_that_is_killed_in_a_flood_is_noticed(usable):
    """Its output is kept, and ranks that wait for it are freed at once."""
    rank = usable.ranks[1]

    def kill():
        os.kill(rank.pid, signal.SIGKILL)

    sink = Counting()
    waiter = when(lambda: sink.count > 3_000, kill)
    source = f"import torch\nif rank == 0: hvd.allreduce(torch.ones(1))\n{ENDLESS}"
    with pytest.raises(RanksFailed, match="SIGKILL"):
        usable.run(source, sink=sink)
    waiter.join()
    usable.restart()


LINES = 36_000
"""How many lines each of these writes: more than are ordered at once (`LOOK_AHEAD_LINES`)."""
WRITERS = {
    "threads": """
import threading
def say(name):
    for at in range({lines} // 3): print(name, at)
threads = [threading.Thread(target=say, args=(name,)) for name in "abc"]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    "descriptors": """
import os
for at in range({lines}): os.write(1 + at % 2, b"%d\\n" % at)
""",
    "C": """
import ctypes
libc = ctypes.CDLL(None)
for at in range({lines}): libc.puts(str(at).encode())
_ = libc.fflush(None)
""",
    "subprocess": """
import subprocess
_ = subprocess.run(["seq", "{lines}"], check=True)
""",
    "both streams": """
import sys
for at in range({lines}): print(at, file=(sys.stdout, sys.stderr)[at % 2])
""",
}


@pytest.mark.parametrize("lines", [LINES, in_soak(60_000)])
@pytest.mark.parametrize("writer", WRITERS)
def test_whoever_writes_loses_nothing(cluster, writer, lines):
    """All of it is in the output of its own cell, however it was written."""
    result = quiet(cluster, WRITERS[writer].format(lines=lines), timeout=FAR_S)
    shown = result.output.splitlines()
    for rank in range(2):
        other = f"[rank {1 - rank}]"
        assert sum(not line.startswith(other) for line in shown) == lines
    assert quiet(cluster, "print('next')").output == "[ranks 0-1] next\n"


def test_a_rank_that_waits_does_not_delay_the_others(cluster):
    """A collective after a flood of one rank is completed."""
    source = (
        "import torch\nif rank == 0:\n    for at in range(36_000): print(at)\n"
        "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    )
    assert quiet(cluster, source, timeout=FAR_S).values == {0: 2.0, 1: 2.0}


def test_a_flood_in_the_background(cluster):
    """The same for a cell that nobody waits for, with another one behind it."""
    first = cluster.run_in_background("for at in range(36_000): print(at)", sink=TextSink())
    second = cluster.run_in_background("print('second')", sink=TextSink())
    assert len(first.result(timeout=FAR_S).output.splitlines()) == 36_000
    assert second.result(timeout=FAR_S).output == "[ranks 0-1] second\n"


def pieces_of(chance, said):
    """Each rank's lines in random pieces, in a random order of ranks."""
    at = dict.fromkeys(said, 0)
    while left := [rank for rank in said if at[rank] < len(said[rank])]:
        rank = chance.choice(left)
        size = chance.randint(1, 30)
        yield rank, said[rank][at[rank] : at[rank] + size]
        at[rank] += size


@pytest.mark.parametrize("seed", range(60))
def test_the_order_that_is_made_meanwhile_does_not_depend_on_timing(seed):
    """However pieces arrive, the text is complete, in each rank's order."""
    chance = random.Random(seed)
    kinds = [lambda rank: f"{chance.randint(0, 30)}\n", lambda _: "same\n",
             lambda rank: f"own {rank} {chance.random()}\n"]  # fmt: skip
    said = {
        rank: [chance.choice(kinds)(rank) for _ in range(chance.choice([0, 5, 100, 200]))]
        for rank in range(chance.randint(1, 4))
    }
    texts = set()
    for _ in range(4):
        log, sink, heard = OutputLog(list(said), look_ahead=10), TextSink(), dict.fromkeys(said, "")
        parts = []
        for rank, lines in pieces_of(chance, said):
            for line in lines:
                log.ranks[rank].text("stdout", line, 0)
            while chance.random() < 0.5 and (part := log.advance()):
                parts.append(part)
        for part in [*parts, *log.rest()]:
            sink.put_final(part)
            for folded in part:
                for rank in folded.ranks:
                    heard[rank] += folded.item.text
        sink.finish()
        assert heard == {rank: "".join(lines) for rank, lines in said.items()}
        texts.add(sink.text)
    assert len(texts) == 1


def test_most_of_the_order_is_made_while_lines_come():
    """Of a long output only so many lines wait for its end."""
    log = OutputLog([0, 1], look_ahead=100)
    for at in range(10_000):
        for rank in range(2):
            log.ranks[rank].text("stdout", f"{at} {rank if at % 3 else ''}\n", 0)
        while log.advance():
            pass
        assert all(len(rest) <= 101 for rest in log.ranks.values())


@pytest.mark.parametrize("seed", range(20))
def test_lines_together_show_as_lines_one_by_one(seed):
    """The excerpt of a long output does not depend on how its lines were put together."""
    chance = random.Random(seed)
    together, single = Excerpt("all"), Excerpt("all")
    for _ in range(chance.randint(1, 12)):
        if chance.random() < 0.2:
            runs = [Item("display", "", "{}")]
        else:
            lines = [f"{chance.random()}\n" for _ in range(chance.choice([1, 5, 700]))]
            runs = [Item("stdout", line) for line in lines]
        together.add(MergedItem((0,), runs[0]._replace(text="".join(one.text for one in runs))))
        for one in runs:
            single.add(MergedItem((0,), one))
    assert together.entries() == single.entries()


def test_a_text_that_is_too_long_keeps_its_beginning_and_its_end():
    """The middle is counted, and the text has the count."""
    whole = "".join(f"{at}\n" for at in range(100_000))
    text = BoundedText(max_characters=1000)
    for at in range(0, len(whole), 77):
        text.add(whole[at : at + 77])
    begin, note, end = str(text).partition("\n... ")
    assert begin == whole[:500]
    note, end = end.split(" ...\n")
    assert f"{len(whole) - 1000:,} characters were dropped" in note
    assert whole.endswith(end)
    assert len(end) == 500


def test_a_text_that_fits_is_kept_completely():
    """Up to the bound nothing is changed."""
    text = BoundedText(max_characters=1000)
    text.add("a" * 500, "b" * 500)
    assert str(text) == "a" * 500 + "b" * 500
