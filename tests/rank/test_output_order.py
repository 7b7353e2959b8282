"""Output of a rank that is written in several ways, or from a signal handler."""

import contextlib
import os
import re
import subprocess
import sys

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
ALTERNATE = """
import ctypes, logging, os, subprocess, sys
libc = ctypes.CDLL(None)
cores = os.sched_getaffinity(0)
def use_cores(numbers):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), numbers)
use_cores({cores})
for n in range({count}):
    {write}
    print("line", n)
use_cores(cores)
"""
WRITERS = {
    "subprocess": ('subprocess.run(["echo", "child", str(n)])', "child {n}\n"),
    "os.system": ('os.system(f"echo child {n}")', "child {n}\n"),
    "os.write": ('os.write(1, b"bytes %d\\n" % n)', "bytes {n}\n"),
    "C": ('libc.printf(b"C %d\\n", n); libc.fflush(None)', "C {n}\n"),
    "unfinished line": ('os.write(1, b"bytes %d, " % n)', "bytes {n}, "),
    "logging": (
        'os.write(2, b"bytes\\n"); logging.warning("log %d", n)',
        "bytes\nWARNING:root:log {n}\n",
    ),
    "both streams": (
        'os.write(2, b"bytes\\n"); print("error", file=sys.stderr); os.write(1, b"%d\\n" % n)',
        "bytes\nerror\n{n}\n",
    ),
    "display": ('os.write(1, b"bytes %d\\n" % n); display(n)', "bytes {n}\n{n}\n"),
}
"""Code that writes something in each iteration, and what it writes."""
PROCESSES = ["subprocess", "os.system"]
FORKS = """
import os
for child in range(4):
    if os.fork() == 0:
        for n in range(500):
            print("child", child, n)
        print("end of", child, end=" ")
        break
else:
    for child in range(4):
        os.wait()
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


def alternate(cluster, writer, count, cores="cores"):
    """Return the lines of a cell that prints after each write of `writer`, and what to expect."""
    code, text = WRITERS[writer]
    source = ALTERNATE.format(write=code, count=count, cores=cores)
    expected = "".join(text.format(n=n) + f"line {n}\n" for n in range(count))
    output = quiet(cluster, source, timeout=FAR_S).output
    return [line.partition("] ")[2] for line in output.splitlines()], expected.splitlines()


@pytest.mark.parametrize("writer", WRITERS)
def test_bytes_and_text_are_in_the_order_of_writing(one, writer):
    """What is written to a descriptor comes before what the cell prints after it."""
    lines, expected = alternate(one, writer, 100 if writer in PROCESSES else 1000)
    assert lines == expected


@pytest.mark.parametrize("writer", WRITERS)
def test_the_order_on_one_core(one, writer):
    """The thread that reads descriptors may get no time between two writes."""
    lines, expected = alternate(one, writer, 100, cores="{min(cores)}")
    assert lines == expected


@pytest.mark.soak
@pytest.mark.parametrize("load", [False, True], ids=["idle", "load"])
@pytest.mark.parametrize("cores", ["cores", "{min(cores)}"], ids=["all cores", "one core"])
@pytest.mark.parametrize("writer", WRITERS)
def test_the_order_of_a_thousand_lines(one, writer, cores, load):
    """It depends neither on the number of cores nor on other processes."""
    busy = [sys.executable, "-c", "while True: pass"]
    count = 2 * len(os.sched_getaffinity(0)) if load else 0
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(busy))
            stack.callback(process.kill)
        lines, expected = alternate(one, writer, 1000, cores)
    assert lines == expected


def test_lines_of_forked_processes_are_whole(one):
    """A print() with several arguments is one write, and an unfinished line is not lost."""
    output = quiet(one, FORKS, timeout=FAR_S).output
    for child in range(4):
        numbers = re.findall(rf"child {child} (\d+)$", output, re.MULTILINE)
        assert numbers == [str(n) for n in range(500)]
        assert f"end of {child}" in output
