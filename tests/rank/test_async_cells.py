"""Cells that use ``await``: all of a session's cells run in one event loop, as in IPython."""

import time

import pytest
from clusters import BeginSink, quiet
from timers import eventually, within

from workbench.errors import CellInterrupted

SERVER = """
import asyncio
async def echo(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
server = await asyncio.start_server(echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
"""
WAITING = """
import asyncio
steps = []
async def waits():
    try:
        print("begun")  # as `BeginSink` expects
        await asyncio.sleep(600)
        steps.append("resumed")
    finally:
        steps.append("cleaned up")
await waits()
"""


def interrupt(cluster, source):
    """Interrupt a cell once it has begun to wait on both ranks."""
    sink = BeginSink()
    run = cluster.run_in_background(source, sink=sink)
    assert eventually(sink.begun)
    time.sleep(0.2)
    assert run.interrupt()
    with pytest.raises(CellInterrupted):
        run.result(100)
    assert eventually(lambda: cluster.state == "ready")


def test_objects_of_an_earlier_cell(cluster):
    """A connection, a queue and a lock of one cell can be awaited in the next."""
    quiet(cluster, SERVER)
    source = "writer.write(f'{rank}\\n'.encode())\nint(await reader.readline())"
    assert quiet(cluster, source).values == {0: 0, 1: 1}
    quiet(cluster, "queue, lock = asyncio.Queue(), asyncio.Lock()\nawait lock.acquire()")
    quiet(cluster, "future = asyncio.get_running_loop().create_future()")
    quiet(cluster, "waiter = asyncio.ensure_future(lock.acquire())\nawait asyncio.sleep(0)")
    quiet(cluster, "lock.release()\nawait queue.put(rank)\nfuture.set_result(10 + rank)")
    source = "(await queue.get(), await waiter, await future)"
    assert quiet(cluster, source).values == {0: (0, True, 10), 1: (1, True, 11)}
    quiet(cluster, "writer.close(); server.close(); await server.wait_closed()")


WORKER = """
import asyncio
queue, done = asyncio.Queue(), []
async def work():
    while True:
        done.append(await queue.get())
        queue.task_done()
worker = asyncio.create_task(work())
"""


def test_a_task_goes_on_in_the_next_cell_that_awaits(cluster):
    """Also one that a cell without ``await`` has created."""
    quiet(cluster, WORKER)
    assert quiet(cluster, "queue.put_nowait(rank)\ndone").values == {0: [], 1: []}
    assert quiet(cluster, "await queue.join()\ndone").values == {0: [0], 1: [1]}
    quiet(cluster, "worker.cancel()\nawait asyncio.wait([worker])")


def test_an_interrupted_cell_does_not_go_on(cluster):
    """It is cancelled, so that its ``finally`` runs at once, and no later cell resumes it."""
    quiet(cluster, "kept = rank")
    interrupt(cluster, WAITING)
    assert quiet(cluster, "steps").values == {0: ["cleaned up"], 1: ["cleaned up"]}
    assert quiet(cluster, "await asyncio.sleep(0.05)\n(kept, len(steps))").values == {
        0: (0, 1),
        1: (1, 1),
    }


def test_a_clean_up_that_waits(cluster):
    """A second interrupt cancels that as well, and awaiting works again."""
    source = WAITING.replace('append("cleaned up")', "append(await asyncio.sleep(600))")
    sink = BeginSink()
    run = cluster.run_in_background(source, sink=sink)
    assert eventually(sink.begun)
    for _ in range(100):
        run.interrupt()
        if within(1, run.done):
            break
    with pytest.raises(CellInterrupted):
        run.result(100)
    assert eventually(lambda: cluster.state == "ready")
    assert quiet(cluster, "await asyncio.sleep(0.01, result=rank)").values == {0: 0, 1: 1}
    assert quiet(cluster, "steps").values == {0: [], 1: []}


def test_a_loop_that_a_cell_has_closed(cluster):
    """The next cell gets a new one."""
    quiet(cluster, "import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()")
    quiet(cluster, "loop.close()")
    assert quiet(cluster, "await asyncio.sleep(0.01, result=rank)").values == {0: 0, 1: 1}


def test_await_within_an_awaiting_cell(cluster):
    """A magic that awaits, in a cell that does."""
    source = (
        "import asyncio\nawait asyncio.sleep(0)\n"
        "get_ipython().run_cell('inner = await asyncio.sleep(0, result=rank)')\ninner"
    )
    assert quiet(cluster, source).values == {0: 0, 1: 1}
