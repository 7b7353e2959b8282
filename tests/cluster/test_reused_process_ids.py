"""An id of a process that has ended may be that of another process when the cluster stops."""

import subprocess
import sys
import textwrap

import pytest
from clusters import with_support
from namespaces import skip_unless_it_runs
from timers import PROCESS_S

# It runs in a space of process ids of its own, as it chooses an id.
SCENARIO = """
import os, pathlib, signal, subprocess, time
import psutil
import workbench as wb
from timers import eventually

def start_as(pid):
    '''Start a process that leads a group, with this id.'''
    pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    found = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert found.pid == pid, (found.pid, pid)
    return found

cluster = wb.Cluster(n=1).start()
rank = psutil.Process(cluster.ranks[0].pid)
(controller,) = [
    one for one in psutil.Process().children() if "workbench.cluster.controller" in one.cmdline()
]
agent = rank.parent()
{ends}
assert eventually(lambda: cluster.state == "failed"), cluster.state
assert eventually(lambda: not psutil.pid_exists({ended}.pid))
other = start_as({ended}.pid)
cluster.stop()
assert other.poll() is None, other.returncode
other.kill()
print("it still ran", flush=True)
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "ends"),
    [("rank", "agent.kill(); rank.kill()"), ("controller", "controller.kill()")],
    ids=["rank", "controller"],
)
def test_another_process_with_the_id_goes_on(ended, ends):
    """Stopping a cluster ends no process but its own, even if one of its own ended long ago."""
    command = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    command += ["sh", "-c", '"$@"; exit $?', "first"]  # the first process reaps orphans
    skip_unless_it_runs(command, "a space of process ids")
    source = textwrap.dedent(SCENARIO).format(ended=ended, ends=ends)
    done = subprocess.run(
        [*command, sys.executable, "-c", source], capture_output=True, text=True, timeout=PROCESS_S,
        check=False, env=with_support(),
    )  # fmt: skip
    assert done.stdout == "it still ran\n", done.stderr
