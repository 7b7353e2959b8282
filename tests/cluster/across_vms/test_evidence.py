"""The evidence bundle of ranks on several VMs."""

import sys

import pytest
from bundles import BundleFile, completed
from clusters import quiet, waiting_for
from timers import FAR_S, eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import RanksFailed


def test_each_vm_and_rank_is_in_the_file(machines):
    """Stacks of the ranks of all VMs, and the snapshot, use and log of each VM."""
    with wb.Cluster(hosts="vm1:2,vm2:1", ssh_config=machines.ssh_config) as cluster:
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
        assert "nothing listens" in bundle.missing[f"vms/{vm}/nccl_ras.json"]
    assert [one["name"] for one in bundle.json("cluster.json")["vms"]] == ["vm1", "vm2"]


def test_secrets_of_a_vm_that_this_kernel_has_not(machines, tmp_path):
    """The environment of its ranks is known by its agent only."""
    python = tmp_path / "python"
    export = "export OWN_PASSWORD='their word'"
    python.write_text(f'#!/bin/sh\n{export}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    hosts = ["vm1", {"name": "vm2", "python": str(python)}]
    fails = "import os\nassert rank == 0, 'not ' + os.environ['OWN_PASSWORD']"
    with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as cluster:
        with pytest.raises(RanksFailed, match="not their word") as caught:
            quiet(cluster, fails)
        bundle = completed(caught.value.evidence)
        on_demand = BundleFile(cluster.bundle(tmp_path / "now.zip"))
    assert "not <removed>" in bundle["error.txt"]
    assert "their word" not in bundle.text + on_demand.text


def test_a_vm_that_is_cut_off(machines, tmp_path):
    """Its parts have the reason, and the snapshot of the start; the others are complete."""
    mark, sink = tmp_path / "never", TextSink()
    options = {"ssh_config": machines.ssh_config, "hang_after_s": 2.0}
    with wb.Cluster(hosts="vm1:1,vm2:1", **options) as cluster:
        future = cluster.run_in_background(f"print('on')\n{waiting_for(mark)}", sink=sink)
        assert eventually(lambda: "[ranks 0-1] on" in sink.text)
        machines.cut("vm2")
        try:
            assert eventually(lambda: cluster.ranks[1].state == "dead")
            mark.touch()
            error = future.exception(timeout=FAR_S)
            bundle = completed(error.evidence)
        finally:
            machines.mend("vm2")
    assert "vm2" in bundle.missing["vms/vm2/sample.json"]
    assert bundle.json("vms/vm2/snapshot.json")["host"]["hostname"] == "vm2"
    assert "vms/vm1/sample.json" in bundle.parts
    assert bundle.manifest["reason"].endswith("rank 1 was lost.")
