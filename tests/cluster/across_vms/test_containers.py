"""Ranks in containers: no root, an sshd on another port, a key file, a read-only home."""

import pytest
from clusters import gone, quiet
from containers import PORT, USER, containers

import workbench as wb
from workbench.cluster.launchers.preflight import survey
from workbench.errors import StartFailed, UsageError

WHO = """
import os
import torch
home = os.path.expanduser('~')
os.getuid(), os.access(home, os.W_OK), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
"""


@pytest.fixture(scope="module")
def pods(machines, tmp_path_factory):
    """Two containers on the first VM, one on the second: their hosts, key and configuration."""
    places = [("vm1", PORT), ("vm1", PORT + 1), ("vm2", PORT)]
    with containers(machines, places, tmp_path_factory.mktemp("containers")) as (key, config):
        hosts = [f"{USER}@{machines.address(vm)}:{port}" for vm, port in places]
        yield hosts, key, config


@pytest.mark.soak
def test_ranks_run_in_containers(pods):
    """They train and recover as elsewhere; containers at one address are told apart."""
    hosts, key, config = pods
    with wb.Cluster(hosts=",".join(hosts), ssh_config=config, ssh_key=key) as cluster:
        first, second, third = [info.vm for info in cluster.ranks]
        assert (first, second, f"{USER}@{third}:{PORT}") == tuple(hosts)
        assert list(cluster.snapshot()) == [first, second, third]
        assert quiet(cluster, WHO).values == dict.fromkeys(range(3), (1000, False, 3.0))
        pids = [info.pid for info in cluster.ranks]
        cluster.restart(ranks=[1])
        assert quiet(cluster, WHO).values == dict.fromkeys(range(3), (1000, False, 3.0))
    assert gone([*pids, cluster.ranks[1].pid])


@pytest.mark.soak
def test_a_survey_uses_the_key(pods):
    """The doctor reaches the containers as a start does."""
    hosts, key, config = pods
    found = survey([f"{host}:2" for host in hosts[:2]], config, key)
    assert list(found.snapshots) == hosts[:2]
    assert found.preflight.fatal == []


@pytest.mark.soak
def test_a_key_that_is_refused(pods, tmp_path):
    """The container and the fix are named."""
    hosts, _, config = pods
    key = tmp_path / "other"
    key.write_text("no key\n")
    key.chmod(0o600)
    with pytest.raises(StartFailed, match="refused the key"):
        wb.Cluster(hosts=hosts[2], ssh_config=config, ssh_key=key).start()


def test_keys_that_cannot_be_used(tmp_path):
    """Nothing is started: the key, and what to do, are named."""
    with pytest.raises(UsageError, match=r"ssh_key='.*nokey': No such file.*Give the path of a"):
        wb.Cluster(hosts="vm1", ssh_key=tmp_path / "nokey")
    with pytest.raises(UsageError, match="without hosts: nothing uses it"):
        wb.Cluster(n=2, ssh_key=__file__)
    with pytest.raises(StartFailed, match="there is no key file /nowhere/key"):
        wb.Cluster(hosts=[{"name": "vm1", "key": "/nowhere/key"}]).start()
