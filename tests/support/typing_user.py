"""A notebook's front end with a user who answers prompts, without the browser."""

import os
import queue
import re
import time
from contextlib import contextmanager

from kernels import start_kernel
from timers import FAR_S

from workbench.errors import COLOURS


class Done:
    """What a cell has shown: its text, its error, and the prompts in their order."""

    def __init__(self):
        self.text = self.error = ""
        self.prompts = []


class TypingUser:
    """A kernel, and a user who types."""

    def __init__(self, manager, client):
        self.manager = manager
        self.client = client

    def run(self, source, *answers, allow_stdin=True):
        """Run a cell to its end; each answer is typed at a prompt, or called if it is a function.

        A function gets this object and the prompt; nothing is typed unless it returns a text.
        """
        cell = self.client.execute(source, allow_stdin=allow_stdin)
        done, left, ended = Done(), list(answers), False
        deadline = time.monotonic() + 2 * FAR_S
        while not ended:
            assert time.monotonic() < deadline, (source, done.text, done.prompts)
            self._answer(done, left)
            ended = self._read(cell, done)
        assert not left, f"not asked for {left}: {done.text} {done.error}"
        return done

    def interrupt(self):
        """Press the stop button."""
        self.manager.interrupt_kernel()

    def _answer(self, done, left):
        try:
            content = self.client.get_stdin_msg(timeout=0.02)["content"]
        except queue.Empty:
            return
        done.prompts.append(content["prompt"])
        assert left, f"nobody expects {done.prompts}: {done.text}"
        answer = left.pop(0)
        text = answer(self, content["prompt"]) if callable(answer) else answer
        if text is not None:
            self.client.input(text)

    def _read(self, cell, done):
        """Take the output that has arrived; return whether the cell has ended."""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                return False
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            match message["msg_type"]:
                case "stream":
                    done.text += COLOURS.sub("", content["text"])
                case "clear_output":
                    done.text = ""
                case "error":
                    done.error = COLOURS.sub("", "\n".join(content["traceback"]))
                case "status" if content["execution_state"] == "idle":
                    return True


@contextmanager
def typing_user(*sources):
    """Start a kernel with the extension and run some cells, which must not fail."""
    manager, client = start_kernel(env=os.environ.copy())
    try:
        user = TypingUser(manager, client)
        for source in ("%load_ext workbench", *sources):
            assert not (failed := user.run(source).error), failed
        yield user
        user.run("%cluster stop")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def process_of(user, rank):
    """The process id of a rank."""
    text = user.run("%%distributed\nimport os\nprint(os.getpid())").text
    return int(re.search(rf"\[rank {rank}\] (\d+)", text)[1])
