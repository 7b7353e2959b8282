"""A rank is only so far ahead of the kernel with its output, and does not wait for ever."""

import sys
import threading
import time

import pytest
from timers import InThread, eventually, within

from workbench.rank.output import CellStream, OutputChannel
from workbench.rank.window import TOTAL_CHARACTERS
from workbench.wire import Inbox, Outbox
from workbench.wire.rank_messages import OutputTaken, StateRequest

LINE = "x" * 99 + "\n"


class Ends:
    """A rank's channel and a kernel's inbox, which answers marks where it is let."""

    def __init__(self):
        self.answers = threading.Event()
        self.messages, self.text, self.mark = [], "", 0
        self.heard = 0
        """How many answers the rank has received."""
        self.inbox = Inbox(self.take)
        self.outbox = Outbox(self.inbox.address_for(0), self.hear)
        self.channel = OutputChannel(self.outbox, world_size=2)
        self.stream = CellStream("stdout", self.channel, 1, sys.stdout)
        self.channel.begin(7)

    def take(self, rank, message):
        self.messages.append(message)
        self.text += message.text.decode()
        self.mark = message.total_characters or self.mark
        if self.answers.is_set():
            self.answer()

    def answer(self, cell=7):
        self.inbox.send(0, OutputTaken(cell, self.mark))

    def hear(self, message):
        if self.channel.receive(message):
            self.heard += 1
        else:
            for _ in range(20_000):
                self.stream.write(LINE)

    def flood(self, lines):
        """Write lines in a thread."""
        return InThread(lambda: [self.stream.write(LINE) for _ in range(lines)])


@pytest.fixture
def ends():
    both = Ends()
    yield both
    both.outbox.close()
    both.inbox.close()


def test_who_writes_waits_for_the_kernel(ends):
    """A flood stops at the bound, continues once the kernel has read it, and loses nothing."""
    writer = ends.flood(20_000)
    assert eventually(lambda: len(ends.text) > TOTAL_CHARACTERS // 4)
    time.sleep(0.5)
    assert len(ends.text) <= TOTAL_CHARACTERS // 2 + len(LINE)
    ends.answers.set()
    ends.answer()
    writer.join()
    ends.channel.end()
    assert eventually(lambda: ends.text == LINE * 20_000)


def test_little_output_is_not_answered(ends):
    """A cell that writes little costs no message from the kernel."""
    for at in range(100):
        ends.stream.write(f"line {at}\n")
    ends.channel.end()
    assert eventually(lambda: "line 99" in ends.text)
    assert not any(message.total_characters for message in ends.messages)


def test_nobody_waits_once_the_code_has_ended(ends):
    """What a thread or a subprocess still writes is sent at once."""
    writer = ends.flood(20_000)
    assert not within(1.0, lambda: not writer.is_alive())
    ends.channel.stop_waiting()
    writer.join()
    assert not writer.is_alive()


def test_an_answer_to_an_earlier_cell_is_none(ends):
    """It does not let the cell that runs write more."""
    writer = ends.flood(20_000)
    assert eventually(lambda: ends.mark > 0)
    ends.answer(cell=6)
    assert not within(0.5, lambda: not writer.is_alive())
    ends.channel.stop_waiting()
    writer.join()


def test_a_kernel_that_is_gone_is_not_waited_for(ends):
    """Without an answer for some seconds the cell continues; after the next one it waits again."""
    writer = ends.flood(20_000)
    assert not within(2.0, lambda: not writer.is_alive())
    writer.join()
    assert not writer.is_alive()
    assert eventually(lambda: ends.text == LINE * 20_000)
    ends.answer()
    assert eventually(lambda: ends.heard == 1)
    writer = ends.flood(20_000)
    assert not within(1.0, lambda: not writer.is_alive())
    ends.channel.stop_waiting()
    writer.join()


def test_the_channels_own_thread_never_waits(ends, monkeypatch):
    """It is the one that hears the answers: what it prints is sent all the same."""
    monkeypatch.setattr("workbench.rank.window._PATIENCE_S", 600.0)
    ends.stream.write(LINE)
    assert eventually(lambda: ends.text == LINE)  # connected
    ends.inbox.send(0, StateRequest())
    assert eventually(lambda: len(ends.text) == 20_001 * len(LINE))
