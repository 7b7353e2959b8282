"""The connection to a VM's agent drops and is made again; and what ends where it cannot be."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from clusters import children, gone, quiet
from timers import eventually, later
from vm_sets import vms

import workbench as wb
from workbench.cluster import TextSink
from workbench.cluster.agent import Agent
from workbench.cluster.launchers import LAUNCHERS, RelayLauncher
from workbench.errors import ClusterStopped, RanksFailed
from workbench.testbed import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
TOTAL = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
PREPARE = "import time, torch\nkept = rank * 10"
SLOWLY = f"for _ in range(60):\n    time.sleep(0.1)\n    total = {TOTAL}\ntotal"


@pytest.fixture(scope="module")
def machines():
    """Two VMs."""
    with vms(2) as found:
        yield found


def start(machines):
    """Start a rank on each VM, each with a variable."""
    options = {"ssh_config": machines.ssh_config, "start_timeout_s": 120}
    cluster = wb.Cluster(hosts=machines.hosts(1), **options).start()
    quiet(cluster, PREPARE)
    return cluster


@pytest.fixture(scope="module")
def running(machines):
    """One cluster for most of these tests."""
    cluster = start(machines)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(running):
    """The same, with all its VMs whatever the test before did to them."""
    if [info for info in running.ranks if info.state == "dead"]:
        running.restart()
    quiet(running, PREPARE)
    return running


def ssh_clients():
    """The ssh clients of this process."""
    return [one for one in children() if one.is_running() and one.name() == "ssh"]


def drop_connections():
    """End every ssh client, as a network that resets connections would."""
    clients = ssh_clients()
    assert clients
    for client in clients:
        client.kill()


def connected(cluster):
    """Whether every VM answers now."""
    return not any("unknown" in str(type(one)).lower() for one in cluster.samples().values())


def test_training_goes_on_when_ssh_drops(machines):
    """The cell completes; a restart, a resize and a stop work afterwards; nothing is left."""
    cluster = start(machines)
    pids = [info.pid for info in cluster.ranks]
    agents = [agent.hello.pid for agent in cluster.agents]
    before = {one.pid for one in ssh_clients()}
    cell = cluster.run_in_background(SLOWLY, sink=TextSink())
    with later(1.0, drop_connections):
        result = cell.result(100)
    assert result.values == {0: 2.0, 1: 2.0}
    assert cluster.state == "ready"
    assert eventually(lambda: connected(cluster))
    assert not before & {one.pid for one in ssh_clients()}
    assert [info.pid for info in cluster.ranks] == pids
    cluster.restart("1")
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}
    cluster.resize(1)
    cluster.resize(2)
    assert quiet(cluster, "import torch\n" + TOTAL).values == {0: 2.0, 1: 2.0}
    mine = [agent.folder for agent in cluster.agents]
    assert all(folder.exists() for folder in mine)
    pids = [info.pid for info in cluster.ranks]
    cluster.stop()
    assert gone([*agents, *pids])
    assert not any(folder.exists() for folder in mine)


@pytest.mark.soak
def test_a_network_that_is_away_for_seconds(cluster, machines):
    """The VM is reconnecting, which its progress and its samples say; then all is as before."""
    agent = cluster.agents[1]
    cell = cluster.run_in_background(SLOWLY, sink=TextSink())
    machines.cut("vm2")
    try:
        assert eventually(lambda: agent.progress == "reconnecting")
        assert cluster.message == "reconnecting to vm2"
        assert not agent.lost
        said = agent.answer(agent.post("sample"), time.monotonic()).reason
        assert "vm2 is reconnecting" in said
        question = agent.post("clock")
    finally:
        machines.mend("vm2")
    assert isinstance(agent.answer(question, time.monotonic() + 30), float)
    assert cell.result(100).values == {0: 2.0, 1: 2.0}
    assert cluster.state == "ready"
    assert agent.progress != "reconnecting"
    assert cluster.message == ""


@pytest.mark.soak
def test_what_is_ordered_meanwhile_is_done_afterwards(cluster):
    """A rank is replaced while the connection to its VM is made again."""
    drop_connections()
    cluster.restart("1")
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}
    assert quiet(cluster, "import torch\n" + TOTAL).values == {0: 2.0, 1: 2.0}


@pytest.mark.soak
def test_each_order_is_carried_out_once(cluster):
    """However often the connection drops while they are sent, no order is lost or repeated."""
    agent = cluster.agents[0]
    questions = []
    for _ in range(4):
        questions += [agent.post("clock") for _ in range(50)]
        for client in ssh_clients():
            client.kill()
        time.sleep(0.3)
    deadline = time.monotonic() + 60
    answers = [agent.answer(question, deadline) for question in questions]
    assert all(isinstance(answer, float) for answer in answers), answers
    old = psutil.Process(agent.hello.pid).children()
    for client in ssh_clients():
        client.kill()
    cluster.restart("0")
    new = psutil.Process(agent.hello.pid).children()
    assert (len(old), len(new)) == (1, 1)


@pytest.mark.soak
def test_an_agent_that_is_killed_is_lost_at_once(cluster):
    """Its rank ends with it, and it is named; there is nothing to connect to again."""
    drop_connections()
    assert eventually(lambda: connected(cluster))
    killed(cluster, "the agent of vm2 is gone")  # the relay that started it is gone as well
    killed(cluster, "the agent of vm2 was killed by SIGKILL")


def killed(cluster, why):
    """The agent of the second VM is killed and named; a restart replaces it."""
    pid, agent = cluster.ranks[1].pid, cluster.agents[1]
    os.kill(agent.hello.pid, signal.SIGKILL)
    assert eventually(lambda: agent.lost == why), agent.lost
    assert gone([pid])
    with pytest.raises(ClusterStopped, match=f"{why}.*restart"):
        quiet(cluster, "1")
    assert eventually(lambda: not agent.folder.exists())
    cluster.restart()
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}


@pytest.mark.soak
def test_a_vm_that_stays_away_is_lost(cluster, machines):
    """After the time in which a connection is tried again, with its reason."""
    machines.cut("vm2")
    try:
        with pytest.raises((RanksFailed, ClusterStopped), match="vm2 does not answer any more"):
            quiet(cluster, f"while True: {TOTAL}", timeout=100)
    finally:
        machines.mend("vm2")


KERNEL = """
import os, time
import workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster(hosts={hosts!r}, ssh_config={config!r}, start_timeout_s=60).start()
cluster.run_in_background("import time\\nwhile True: time.sleep(0.01)", sink=TextSink())
print(*[info.pid for info in cluster.ranks], flush=True)
print(*[agent.hello.pid for agent in cluster.agents], flush=True)
print(*[agent.folder for agent in cluster.agents], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.soak
def test_a_kernel_that_is_killed(machines):
    """Ranks on VMs end within the grace period; no process, folder or socket is left."""
    source = KERNEL.format(hosts=machines.hosts(1), config=str(machines.ssh_config))
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=150, check=False
    )
    ranks, agents, mine = (line.split() for line in done.stdout.splitlines())
    assert all(Path(folder).exists() for folder in mine)
    assert gone([int(pid) for pid in [*ranks, *agents]]), done.stderr
    assert not any(Path(folder).exists() for folder in mine)


def test_the_kernel_that_attaches_last_has_the_agent():
    """The previous kernel is notified, and does not reconnect."""
    first = Agent(None, 1, keep_s=600)
    try:
        first.wait_until_greeted(time.monotonic() + 60)
        second = Agent(None, 1, folder=first.folder)
        assert second.wait_until_attached(time.monotonic() + 60)
        assert eventually(lambda: bool(first.lost))
        assert first.lost == "another kernel has attached to this cluster"
        assert isinstance(second.ask("clock"), float)
        assert second.hello.pid == first.hello.pid
        second.close()
        assert gone([first.hello.pid])
    finally:
        first.close()


class NamespaceLauncher(RelayLauncher):
    """Runs the relay in a VM of `workbench.testbed` without ssh."""

    machines = None

    def command(self, host, program, _):
        """See `RelayLauncher`."""
        address = self.machines.kernel_address
        seen = f"SSH_CONNECTION={address} 1 {self.machines.address(host.name)} 22"
        return self.machines.inside(host.name, ["env", seen, *program])

    def failure(self, host, code, said):
        """See `Launcher`."""
        raise AssertionError((host, code, said))


@pytest.mark.soak
def test_a_relay_that_starts_when_its_connection_is_gone():
    """It leaves the agent to the relay, or kernel, that has connected meanwhile."""
    with wb.Cluster(n=1) as cluster:
        quiet(cluster, PREPARE)
        folder = cluster.agents[0].folder
        relay = [sys.executable, "-m", "workbench.agent.relay", str(folder)]
        none = subprocess.DEVNULL
        done = subprocess.run(relay, stdin=none, capture_output=True, timeout=150, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        time.sleep(0.5)
        assert not cluster.agents[0].lost
        assert quiet(cluster, "kept").values == {0: 0}


@pytest.mark.soak
def test_a_launcher_is_a_class_and_an_entry_in_the_table(machines, monkeypatch):
    """Nothing else has to know it: its clusters start, and are connected to again."""
    monkeypatch.setitem(LAUNCHERS, "namespace", f"{__name__}.NamespaceLauncher")
    monkeypatch.setattr(NamespaceLauncher, "machines", machines)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    before = ssh_clients()
    with wb.Cluster(hosts="vm1,vm2", launcher="namespace", start_timeout_s=60) as cluster:
        assert ssh_clients() == before
        quiet(cluster, "import torch")
        relays = children("workbench.agent.relay")
        assert len(relays) == 2
        for relay in relays:
            relay.kill()
        assert quiet(cluster, TOTAL).values == {0: 2.0, 1: 2.0}
        assert eventually(lambda: connected(cluster))
