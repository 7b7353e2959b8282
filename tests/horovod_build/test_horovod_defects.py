"""Patches for Horovod's own defects, on real ranks."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from levels import in_soak
from namespaces import skip_unless_it_runs
from timers import FAR_S, PROCESS_S, later
from two_ranks import two_ranks

from workbench.horovod_build.commands import end_group

needs_horovod = pytest.mark.skipif(
    find_spec("horovod") is None, reason="no Horovod is installed here: `workbench build-horovod`"
)


NIC = "10.77.0.1"

# As a fresh Debian or Ubuntu VM is: the host's name is in /etc/hosts, as 127.0.1.1.
# All of it ends with the process, whose namespaces have no names that could be left.
VM = f"""
hostname "$1"; mount --bind "$2" /etc/hosts; shift 2
ip link set lo up
ip link add nic type veth peer name other
ip addr add {NIC}/24 dev nic
ip link set other up; ip link set nic up
exec "$@"
"""

SEES_CONNECTIONS = """
import json, os, socket
import horovod.torch as hvd
import psutil, torch

hvd.init()
total = hvd.allreduce(torch.ones(1000), op=hvd.Sum, name="first")
found = {
    "sum": total.sum().item(),
    "host": socket.gethostbyname(socket.gethostname()),
    "ends": [
        (connection.laddr.ip, connection.raddr.ip)
        for connection in psutil.net_connections("tcp")
        if connection.pid == os.getpid() and connection.status == psutil.CONN_ESTABLISHED
    ],
}
hvd.allreduce(torch.ones(1), name="second")  # neither leaves before both have looked
os.write(1, f"RANK {json.dumps(found)}\\n".encode())
hvd.shutdown()
"""


@pytest.fixture
def vm(tmp_path):
    """The command in front of another that runs it as on a machine of its own."""
    name = f"workbench-{os.getpid()}"
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    apart = ["unshare", "--net", "--mount", "--uts", "--fork", "--kill-child"]
    command = [*apart, "sh", "-ec", VM, "vm", name, str(hosts)]
    skip_unless_it_runs(command, "a network namespace")
    return command


@pytest.fixture
def own_loopback():
    """The command in front of another that gives it a loopback interface of its own."""
    apart = ["unshare", "--net", "--fork", "--kill-child"]
    command = [*apart, "sh", "-ec", 'ip link set lo up; exec "$@"', "apart"]
    skip_unless_it_runs(command, "a network namespace")
    return command


@pytest.mark.soak
@needs_horovod
def test_ranks_connect_on_the_interface_that_was_named(vm):
    """If the host's name resolves to 127.0.1.1, no connection of a rank is on loopback."""
    with two_ranks(SEES_CONNECTIONS, address=NIC, interface="nic", inside=vm) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    found = [json.loads(rank) for rank in re.findall("RANK (.*)", said)]
    assert [rank["sum"] for rank in found] == [2000, 2000], said
    assert {rank["host"] for rank in found} == {"127.0.1.1"}
    for rank in found:
        assert {end for ends in rank["ends"] for end in ends} == {NIC}


THRESHOLD_S = 2

# Rank 1 comes when its standard input ends, or at last without that.
ONE_RANK_LATE = """
import select, sys
import horovod.torch as hvd
import torch

hvd.init()
hvd.allreduce(torch.ones(1), name="both")
if hvd.rank() == 1:
    select.select([sys.stdin], [], [], 40)
    print("COMES", flush=True)
handle = hvd.allreduce_async(torch.ones(1), name="late")
hvd.synchronize(handle)
hvd.shutdown()
"""


@needs_horovod
def test_the_stall_check_names_the_rank_and_the_tensor():
    """Horovod's log says, while rank 1 does not come, which rank has not submitted what."""
    said, has_come, warned = [], False, False
    threshold = {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(THRESHOLD_S)}
    with (
        two_ranks(ONE_RANK_LATE, **threshold) as process,
        later(60, lambda: end_group(process)),
    ):
        for line in process.stdout:
            said.append(line)
            has_come = has_come or "COMES" in line
            if "1: [allreduce.late]" in line:
                warned = warned or not has_come
                process.stdin.close()
        assert process.wait(timeout=60) == 0, "".join(said)
    assert warned, "".join(said)


# Rank 1 dies when an eighth of half a gigabyte has travelled that rank ROOT gives both.
# A broadcast is one send and one receive: nothing else shows that the pair failed.
# The loopback interface must have no other traffic, and Gloo's own timeout is out of reach.
ONE_RANK_DIES = """
import os, pathlib, re, signal, threading, time
import horovod.torch as hvd
import torch

def sent_bytes():
    lines = pathlib.Path("/proc/net/dev").read_text()
    return int(re.search(r"^ *lo:(.*)", lines, re.MULTILINE)[1].split()[8])

def die():
    limit = sent_bytes() + (1 << 26)
    while sent_bytes() < limit:
        time.sleep(0.001)
    os.write(1, b"DIES\\n")
    os.kill(os.getpid(), signal.SIGKILL)

os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "600"
hvd.init()
tensor = torch.ones(1 << 27)
hvd.allreduce(torch.ones(1), name="both")
if hvd.rank() == 1:
    threading.Thread(target=die, daemon=True).start()
try:
    hvd.broadcast_(tensor, root_rank=int(os.environ["ROOT"]), name="large")
    print("DONE", flush=True)
except hvd.HorovodInternalError:
    print("FREED", flush=True)
"""


@needs_horovod
@pytest.mark.parametrize("root", [0, in_soak(1)], ids=["sends", "receives"])
def test_a_rank_is_freed_at_once_when_another_dies_within_a_tensor(root, own_loopback):
    """What was half sent or half received ends with the connection, not with Gloo's timeout."""
    said = {}
    with two_ranks(ONE_RANK_DIES, ROOT=str(root), inside=own_loopback) as process:
        for line in process.stdout:
            for word in re.findall("DIES|FREED|DONE", line):  # the log may share its line
                said.setdefault(word, time.monotonic())
    assert said.keys() == {"DIES", "FREED"}
    assert said["FREED"] - said["DIES"] < FAR_S


# Ranks 0 to 2 read their tensor, in memory without access, when Horovod has agreed to reduce it:
# rank 1 is killed by that, and rank 2 goes on when rank 1 is gone. Rank 3 has sent nothing of its
# tensor, and cannot, before rank 2 asks for the next thing. Rank 0 keeps it waiting meanwhile.
ONE_RANK_DIES_FIRST = """
import ctypes, mmap, os, signal, time
import horovod.torch as hvd
import torch

SIZE = 1 << 16
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, SIZE)
tensor = torch.frombuffer(memory, dtype=torch.float32)
address = ctypes.c_void_p(tensor.data_ptr())

@ctypes.CFUNCTYPE(None, ctypes.c_int)
def later(number):
    time.sleep({0: 4, 2: 2}[hvd.rank()])
    libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE)

os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "600"
hvd.init()
hvd.allreduce(torch.ones(1), name="all")
if hvd.rank() in (0, 2):
    libc.signal(signal.SIGSEGV, later)
if hvd.rank() != 3:
    libc.mprotect(address, SIZE, 0)
try:
    hvd.allreduce(tensor, name="tensor")
except hvd.HorovodInternalError:
    rank = hvd.rank()
    hvd.shutdown()
    os.write(1, f"FREED {rank}\\n".encode())
"""


@pytest.mark.soak
@needs_horovod
def test_the_other_ranks_outlive_one_that_is_killed_as_an_operation_begins():
    """A neighbour's message of the failed operation, in the place of another, does no harm."""
    with two_ranks(ONE_RANK_DIES_FIRST, n=4) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    assert sorted(re.findall(r"FREED (\d)", said)) == ["0", "2", "3"], said


# Rank 1 does not come; each then makes a ring of its own.
ONE_RANK_MISSING = """
import os
import horovod.torch as hvd
import torch

os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "1"
if os.environ["HOROVOD_RANK"] == "0":
    try:
        hvd.init()
    except ValueError:
        print("MISSED", flush=True)
    hvd.shutdown()
alone = {"RANK": 0, "SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": 0, "CROSS_SIZE": 1}
os.environ |= {f"HOROVOD_{name}": str(value) for name, value in alone.items()}
del os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
hvd.init()
print("SUM", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
hvd.shutdown()
"""


@needs_horovod
def test_a_rank_outlives_a_ring_that_was_not_formed():
    """If another rank does not come, hvd.init() raises, and works when it is called again."""
    with two_ranks(ONE_RANK_MISSING) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, said
    assert said.count("MISSED") == 1
    assert said.count("SUM 1.0") == 2


# Rank 1 does not join. The next ring needs a rendezvous server, so each makes one of its own.
FREED_FROM_JOIN = """
import os, time
import horovod.torch as hvd
import torch

hvd.init()
hvd.allreduce(torch.ones(1), name="both")
if hvd.rank() == 0:
    try:
        hvd.join()
    except hvd.HorovodInternalError:
        print("FREED", flush=True)
else:
    time.sleep(1)
hvd.shutdown()
alone = {"RANK": 0, "SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": 0, "CROSS_SIZE": 1}
os.environ |= {f"HOROVOD_{name}": str(value) for name, value in alone.items()}
del os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
hvd.init()
print("SUM", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").item(), flush=True)
hvd.shutdown()
"""


@needs_horovod
def test_a_rank_outlives_a_join_that_another_did_not_come_to():
    """Who is freed from hvd.join() is a usual rank of the next ring."""
    with two_ranks(FREED_FROM_JOIN) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, said
    assert said.count("FREED") == 1
    assert said.count("SUM 1.0") == 2


THREE_RINGS = """
import torch, horovod.torch as hvd
for _ in range(3):
    hvd.init()
    print("SUM", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
    hvd.shutdown()
"""
ALONE = {"RANK": 0, "SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": 0, "CROSS_SIZE": 1}


@needs_horovod
def test_a_rank_with_settings_outlives_its_first_ring():
    """Its own buffer size and cycle time: a ring that is formed later takes them again."""
    settings = {**ALONE, "FUSION_THRESHOLD": 1 << 25, "CYCLE_TIME": 2, "CONTROLLER": "gloo"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    env |= {f"HOROVOD_{name}": str(value) for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", THREE_RINGS], env=env, capture_output=True, text=True,
    timeout=PROCESS_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SUM 1.0") == 3
