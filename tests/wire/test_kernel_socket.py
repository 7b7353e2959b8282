"""The socket of a detached process ends it when no kernel attaches."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from timers import FAR_S

from workbench.wire.agent_messages import Attach, encode

WAIT = """
from workbench.wire.kernel_socket import KernelSocket
kernel = KernelSocket({}, first_s={})
while not kernel.abandoned:
    kernel.receive(0.02)
"""


@contextmanager
def running(path, grace_s, first_s, *, attach):
    """A process with such a socket; with `attach`, a kernel has attached and left."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        if attach:
            client.connect(str(path))
            client.sendall(encode(Attach("a")))
        client.close()
        command = [sys.executable, "-c", WAIT.format(grace_s, first_s)]
        with subprocess.Popen(command, stdin=server) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.mark.parametrize(("attach", "times"), [(False, (1000.0, 0.3)), (True, (0.3, 1000.0))])
def test_a_process_ends(tmp_path, attach, times):
    """Soon after its start if no kernel has attached; else when the grace period is over."""
    with running(tmp_path / "socket", *times, attach=attach) as process:
        assert process.wait(FAR_S) == 0


def test_a_kernel_that_has_left_is_waited_for(tmp_path):
    """Its process is kept for the grace period, not only for the time of a start."""
    with (
        running(tmp_path / "socket", 1000.0, 1.0, attach=True) as process,
        pytest.raises(subprocess.TimeoutExpired),
    ):
        process.wait(4)
