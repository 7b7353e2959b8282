"""The launcher that ipyparallel finds under the name "workbench"."""

import contextlib
import os
import signal
import socket

import ipyparallel as ipp
import pytest
from clusters import gone
from traitlets.config import Config
from vm_sets import vms

from workbench.errors import UsageError
from workbench.testbed import why_not


def start(tmp_path, n, **traits):
    config = Config()
    config.WorkbenchEngineSetLauncher.update(traits)
    options = {"n": n, "engines": "workbench", "profile_dir": str(tmp_path / "profile")}
    return ipp.Cluster(config=config, log_level=30, **options)


def pids(client):
    return client[:].apply_sync(os.getpid)


def test_engines_on_this_machine(tmp_path):
    """``ipp.Cluster(engines="workbench")`` gives engines, and takes them down again."""
    with start(tmp_path, 2) as client:
        client.wait_for_engines(2, timeout=60)
        found = pids(client)
        assert len(set(found)) == 2
    assert gone(found)


@pytest.mark.soak
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_engines_on_vms(tmp_path):
    """With hosts they are on the VMs, reached over ssh."""
    with vms(2) as machines:
        traits = {"hosts": machines.hosts(1), "ssh_config": str(machines.ssh_config)}
        cluster = start(tmp_path, 2, **traits)
        cluster.controller_ip = machines.kernel_address
        cluster.controller_location = machines.kernel_address
        with cluster as client:
            client.wait_for_engines(2, timeout=60)
            assert sorted(client[:].apply_sync(socket.gethostname)) == ["vm1", "vm2"]


def test_more_engines_than_slots(tmp_path):
    """A number that is not that of the hosts is reported, with both numbers."""
    cluster = start(tmp_path, 3, hosts="vm1:1,vm2:1")
    with pytest.raises(UsageError, match=r"3 engines: .* have 2 slots"):
        cluster.start_cluster_sync()
    session = cluster.controller.pid  # the controller leads a session, its schedulers are in it
    cluster.stop_cluster_sync()
    # ipyparallel interrupts the controller once. That has no effect while it imports modules, and
    # one that ends while it starts its schedulers leaves them behind
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
