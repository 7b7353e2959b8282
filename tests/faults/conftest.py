"""The cluster of the tests of faults, and two VMs."""

import contextlib
import os
import signal

import pytest
from import_hooks import after_import
from timers import eventually

from workbench.testbed import vms, why_not

from .box import HOOK, Box, ours


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(after_import("workbench.rank.session", HOOK))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    found = Box(folder)
    try:
        yield found
    finally:
        found.close()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    assert eventually(lambda: not ours())


@pytest.fixture
def box(shared):
    """The cluster of these tests; all that a failed test leaves is ended here."""
    try:
        yield shared
    finally:
        cluster = shared._cluster
        if cluster is not None and (cluster.state != "ready" or len(ours()) != shared._processes):
            shared.close()
        if shared._cluster is None:
            for pid in ours():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def machines():
    """Two VMs, which end with the file: the agent of one that stays cut off is left in it."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with vms(2, gbps=1.0) as found:
        yield found
