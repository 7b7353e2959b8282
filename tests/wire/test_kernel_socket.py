"""The socket of a detached process ends it when no kernel attaches."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from workbench.wire.agent_messages import Attach, encode

WAIT = """
import sys, time
from workbench.wire.kernel_socket import KernelSocket
kernel = KernelSocket({}, first_s={})
if {}:
    while not kernel.receive(0.02): pass  # until it has attached
    kernel.receive(1.0)  # it has left
end = time.monotonic() + {}
while not kernel.abandoned and time.monotonic() < end:
    kernel.receive(0.02)
print("abandoned" if kernel.abandoned else "waits")
"""
FAR_S = 600.0
"""Longer than the test."""


@contextmanager
def running(path, grace_s, first_s, watched_s, *, attach):
    """A process with such a socket; with `attach`, a kernel has attached and left."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        if attach:
            client.connect(str(path))
            client.sendall(encode(Attach("a")))
        client.close()
        command = [sys.executable, "-c", WAIT.format(grace_s, first_s, attach, watched_s)]
        with subprocess.Popen(command, stdin=server, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.mark.parametrize(
    ("attach", "grace_s", "first_s", "watched_s", "said"),
    [
        (False, FAR_S, 0.3, FAR_S, "abandoned"),
        (True, 0.3, FAR_S, FAR_S, "abandoned"),
        (True, FAR_S, 0.3, 1.0, "waits"),
        (False, 0.3, FAR_S, 1.0, "waits"),
        (False, 0.3, None, FAR_S, "abandoned"),
    ],
    ids=[
        "no kernel has attached",
        "the grace period is over",
        "the time of a start does not end the grace period",
        "the grace period does not end the time of a start",
        "no time of a start",
    ],
)
def test_a_process_without_a_kernel(tmp_path, attach, grace_s, first_s, watched_s, said):
    """It ends soon after its start if no kernel has attached; else after the grace period."""
    with running(tmp_path / "socket", grace_s, first_s, watched_s, attach=attach) as process:
        assert process.communicate(timeout=FAR_S)[0].strip() == said
