"""An agent of this machine without a kernel: its requests, and what it reports."""

import contextlib
import select
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from workbench.wire.agent_messages import Answer, Ask, Attach, MessageReader, encode
from workbench.wire.detached import connect_agent, start_agent


class BareAgent:
    """An agent in a folder of its own, and a connection to it; the session is "a"."""

    def __init__(self, grace_s=15.0, **attach):
        self.folder = Path(tempfile.mkdtemp()) / "agent"
        self.process, self.socket = start_agent(self.folder, grace_s)
        self._reader, self._reports = MessageReader(), []
        self.send(Attach("a", **attach))

    def attach(self, session):
        """Connect again."""
        self.socket = connect_agent(self.folder)
        self._reader, self._reports = MessageReader(), []
        self.send(Attach(session))

    def send(self, message):
        self.socket.sendall(encode(message))

    def report(self, kind, fits=lambda _: True, wait_s=60.0):
        """Wait for a report of a kind, and return it; those before it are dropped."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            while self._reports:
                report = self._reports.pop(0)
                if isinstance(report, kind) and fits(report):
                    return report
            if select.select([self.socket], [], [], 0.1)[0]:
                data = self.socket.recv(1 << 16)
                if not data:
                    break
                self._reports += self._reader.feed(data)
        return pytest.fail(f"the agent has not reported {kind.__name__}")

    def ask(self, number, question, **arguments):
        """Ask, and return the answer."""
        self.send(Ask(number, question, arguments))
        return self.report(Answer, lambda answer: answer.id == number)

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder.parent, ignore_errors=True)


@contextlib.contextmanager
def bare_agents():
    """Give what starts such agents; they end with the block."""
    with contextlib.ExitStack() as stack:

        def one(**options):
            agent = BareAgent(**options)
            stack.callback(agent.close)
            return agent

        yield one
