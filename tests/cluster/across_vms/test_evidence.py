"""The evidence bundle of ranks on several VMs."""

import sys

import pytest
from bundles import BundleFile, completed
from clusters import quiet, waiting_for
from timers import FAR_S, eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import RanksFailed


@pytest.fixture(scope="module")
def cluster(machines, tmp_path_factory):
    """Two ranks on the first VM; one on the second, in whose environment is a secret."""
    python = tmp_path_factory.mktemp("bin") / "python"
    export = "export OWN_PASSWORD='their word'"
    python.write_text(f'#!/bin/sh\n{export}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    hosts = [{"name": "vm1", "slots": 2}, {"name": "vm2", "python": str(python)}]
    options = {"ssh_config": machines.ssh_config, "hang_after_s": 2.0}
    with wb.Cluster(hosts=hosts, **options) as cluster:
        yield cluster


def test_each_vm_and_rank_is_in_the_file(cluster):
    """Stacks of the ranks of all VMs, and the snapshot, use and log of each VM."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "if rank == 2: raise ValueError('boom')\nhvd.barrier()", timeout=FAR_S)
    bundle = completed(caught.value.evidence)
    stacks = bundle["stacks.txt"]
    assert [vm for vm in ("vm1", "vm2") if f" on {vm}\n" in stacks] == ["vm1", "vm2"]
    assert stacks.count("barrier()") >= 2
    for vm in ("vm1", "vm2"):
        assert bundle.json(f"vms/{vm}/snapshot.json")["host"]["hostname"] == vm
        assert bundle.json(f"vms/{vm}/sample.json")["memory"]["total_bytes"] > 0
        log = f"vms/{vm}/kernel_log.txt"
        assert "lines read" in bundle.parts.get(log, "") or bundle.missing[log]
        started = bundle.parts[f"vms/{vm}/workbench_log.txt"].count("process of slot")
        assert started == {"vm1": 2, "vm2": 1}[vm]
        assert "nothing listens" in bundle.missing[f"vms/{vm}/nccl_ras.json"]
    assert [vm["name"] for vm in bundle.json("cluster.json")["vms"]] == ["vm1", "vm2"]


def test_secrets_of_a_vm_that_this_kernel_has_not(cluster, tmp_path):
    """The environment of its ranks is known by its agent only."""
    fails = "import os\nassert rank < 2, 'not ' + os.environ['OWN_PASSWORD']"
    with pytest.raises(RanksFailed, match="not their word") as caught:
        quiet(cluster, fails)
    bundle = completed(caught.value.evidence)
    on_demand = BundleFile(cluster.bundle(tmp_path / "now.zip"))
    assert "not <removed>" in bundle["error.txt"]
    assert "their word" not in bundle.text + on_demand.text


@pytest.mark.soak
def test_a_vm_that_is_cut_off(cluster, machines, tmp_path):
    """Its parts have the reason, and the snapshot of the start; the others are complete."""
    mark, sink = tmp_path / "never", TextSink()
    future = cluster.run_in_background(f"print('on')\n{waiting_for(mark)}", sink=sink)
    assert eventually(lambda: "[ranks 0-2] on" in sink.text)
    machines.cut("vm2")
    try:
        assert eventually(lambda: cluster.ranks[2].state == "dead")
        mark.touch()
        error = future.exception(timeout=FAR_S)
        bundle = completed(error.evidence)
    finally:
        machines.mend("vm2")
    assert "vm2" in bundle.missing["vms/vm2/sample.json"]
    assert bundle.json("vms/vm2/snapshot.json")["host"]["hostname"] == "vm2"
    assert "vms/vm1/sample.json" in bundle.parts
    assert bundle.manifest["reason"].endswith("rank 2 was lost.")
