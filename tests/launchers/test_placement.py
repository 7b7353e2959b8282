"""Which GPU, cores and NIC a rank gets, from what its VM has: no such VM is needed."""

import dataclasses

from workbench.cluster.launchers.placement import place
from workbench.resources import Gpu, Nic, Unknown, take_snapshot
from workbench.wire.agent_messages import Facts

UNKNOWN = Unknown("not here")


def gpu(index, address, form="passthrough", **others):
    values = dict.fromkeys((field.name for field in dataclasses.fields(Gpu)), UNKNOWN)
    values |= {"index": index, "uuid": f"GPU-{index}-{form}", "name": "A100"}
    return Gpu(**values | {"pci_address": address, "form": form} | others)


def rdma(name, node, state="active"):
    values = dict.fromkeys((field.name for field in dataclasses.fields(Nic)), UNKNOWN)
    values |= {"name": name, "kind": "rdma", "rdma_device": f"mlx_{name}", "rdma_port": 1}
    return Nic(**values | {"state": state, "numa_node": node, "gids": ()})


def facts(gpus=(), nics=(), numa_of=None):
    snapshot = dataclasses.replace(take_snapshot(), gpus=tuple(gpus), nics=tuple(nics))
    cores = {"0": [0, 1], "1": [2, 3]}
    return Facts(None, snapshot.to_plain(), numa_of or {}, cores, [], {})


def test_without_gpus_ranks_use_all_cores():
    """A VM without GPUs leaves its ranks where the kernel puts them."""
    first, second = place(facts(), "eth0", 2)
    assert first == second
    assert (first.gpu, first.numa, first.nic, first.cores) == ("CPU", "any", "eth0", ())
    assert first.environment == {}


def test_each_rank_gets_a_gpu_and_what_is_near_it():
    """The cores of the GPU's NUMA node; all GPUs visible in slot order, all ports to all ranks.

    A NUMA node alone makes no port the nearest: `test_nearest_nic` has distances.
    """
    found = place(
        facts(
            [gpu(0, "0000:01:00.0"), gpu(1, "0000:81:00.0")],
            [rdma("ib0", 0), rdma("ib1", 1)],
            {"0000:01:00.0": 0, "0000:81:00.0": 1},
        ),
        "eth0",
        2,
    )
    assert [one.numa for one in found] == ["0", "1"]
    assert [one.cores for one in found] == [(0, 1), (2, 3)]
    assert [one.nic for one in found] == ["eth0", "eth0"]
    assert all("NCCL_IB_HCA" not in one.environment for one in found)
    assert {one.environment["NCCL_SOCKET_IFNAME"] for one in found} == {"=eth0"}
    visible = {one.environment["CUDA_VISIBLE_DEVICES"] for one in found}
    assert visible == {"GPU-0-passthrough,GPU-1-passthrough"}


def test_where_the_node_is_not_known_nothing_is_pinned():
    """In a VM that hides its NUMA nodes no core and none of several ports is called the nearest."""
    ports = [rdma("ib0", 0), rdma("ib1", 0)]
    (one,) = place(facts([gpu(0, "0000:01:00.0")], ports), "eth0", 1)
    assert (one.numa, one.cores, one.nic) == ("any", (), "eth0")
    assert "NCCL_IB_HCA" not in one.environment


def test_a_port_that_is_down_is_not_the_nearest():
    """Only an active RDMA port is chosen."""
    given = facts([gpu(0, "a")], [rdma("ib0", 0, "down")], {"a": 0})
    (one,) = place(given, "eth0", 1)
    assert one.nic == "eth0"


def test_mig_devices_replace_their_gpu():
    """Each rank sees its own MIG device only; the GPU beneath is given to nobody."""
    found = place(
        facts([gpu(0, "a"), gpu(0, "a", "mig", uuid="MIG-1"), gpu(0, "a", "mig", uuid="MIG-2")]),
        "eth0",
        2,
    )
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in found] == ["MIG-1", "MIG-2"]


def test_a_vgpu_is_named_by_its_profile():
    """The table shows which profile a rank trains on."""
    (one,) = place(facts([gpu(0, "a", "vgpu", vgpu_profile="A100-40C")]), "eth0", 1)
    assert one.gpu == "0 (A100-40C)"


def test_gpus_that_a_rank_has_already():
    """Those of its engine, by index or UUID: nothing is set, and each has its own node."""
    given = facts([gpu(0, "a"), gpu(1, "b")], numa_of={"a": 0, "b": 1})
    found = [place(given, "eth0", 2, visible=text) for text in ("1", "GPU-0-passthrough", "1,0")]
    assert [[one.numa for one in each] for each in found] == [["1", "1"], ["0", "0"], ["1", "0"]]
    assert all("CUDA_VISIBLE_DEVICES" not in one.environment for each in found for one in each)
    assert place(given, "eth0", 1, visible="")[0].gpu == "CPU"
