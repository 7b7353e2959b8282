"""Output of a rank that is written in several ways, or from a signal handler."""

import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb

HANDLER = """
import signal
times = 0
def tick(*_):
    global times
    times += 1
    print("tick")
before = signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while times < 100:
    print("line")
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, before)
times
"""
CHILDREN = """
import subprocess
for number in range(20):
    subprocess.run(["echo", f"child {number}"], check=True)
    print("parent", number)
subprocess.run(["echo", "last"], check=True).returncode
"""


@pytest.fixture(scope="module")
def one():
    with wb.Cluster(n=1, backend="ddp") as cluster:
        yield cluster


def test_a_signal_handler_prints_while_the_cell_prints(one):
    """Nothing blocks, and no text is lost."""
    result = quiet(one, HANDLER, timeout=FAR_S)
    assert result.output.count("tick") == result.values[0]
    assert quiet(one, "1 + 1").values == {0: 2}


def test_a_subprocess_and_the_cell_in_turn(one):
    """What a subprocess has written is shown before what the cell prints after it."""
    said = [line.partition("] ")[2] for line in quiet(one, CHILDREN).output.splitlines()]
    turns = [text for number in range(20) for text in (f"child {number}", f"parent {number}")]
    assert said == [*turns, "last", "0"]
