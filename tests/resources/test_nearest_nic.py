"""Which RDMA ports the ranks of a VM use, on machines of folders: no such VM is needed."""

from __future__ import annotations

import pytest
from fake_machine import Machine, snap
from fake_nvml import FakeNvml, h100, mig_a100
from hgx_host import BUSES, build_hgx
from pci_host import add_bridge, add_gpu, add_port

from workbench.cluster.launchers.placement import place
from workbench.resources import NcclSettings, Unknown
from workbench.resources.nccl_ports import common_layer
from workbench.widgets.nominal import rate_of_vm
from workbench.wire.agent_messages import Facts

NCCL = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")


def facts(machine, nvml, **settings):
    """Return the report of the machine's agent."""
    snapshot = snap(machine, nvml, nccl=NcclSettings(settings, machine.sysfs.parent))
    nodes = {gpu.pci_address: number // 4 for number, gpu in enumerate(snapshot.gpus)}
    return Facts(None, snapshot.to_plain(), nodes, {"0": [0], "1": [1]}, [], {})


def gpus(machine, *addresses, numa=0, above=None):
    """GPUs each below a root port of its own, or below `above`, and the NVML that has them."""
    for number, address in enumerate(addresses):
        add_gpu(machine, address, above or f"pci0000:{number:02x}", numa)
    return FakeNvml(*(h100(uuid=f"GPU-{one}", bus_id=f"0000{one.upper()}") for one in addresses))


def placed(facts, slots, interface="ens192", **more):
    """The ports shown, and NCCL's settings, which all ranks of the VM must share."""
    found = place(facts, interface, slots, layer=common_layer([_snapshot(facts)]), **more)
    (settings,) = {tuple(one.environment.get(name) for name in NCCL) for one in found}
    return [one.nic for one in found], dict(zip(NCCL, settings, strict=True))


def _snapshot(facts):
    from workbench.resources import Snapshot

    return Snapshot.from_plain(facts.snapshot)


def test_a_board_of_eight(machine):
    """On an HGX host each GPU has its own port, under its own switch; all ranks see all ports."""
    ports, settings = placed(facts(machine, build_hgx(machine)), 8)
    assert ports == [f"ens192, mlx5_{number}" for number in range(8)]
    assert settings == {"NCCL_IB_HCA": None, "NCCL_SOCKET_IFNAME": "=ens192"}


def test_the_nearest_is_not_of_the_node_alone(machine):
    """Of two ports of one NUMA node the one under the GPU's own switch, listed last."""
    add_port(machine, "0000:70:00.0", "mlx5_0", add_bridge(machine, "0000:00:02.0"))
    upstream = add_bridge(machine, "0000:50:00.0", add_bridge(machine, "0000:00:01.0"))
    nvml = gpus(machine, "0000:53:00.0", above=add_bridge(machine, "0000:51:00.0", upstream))
    add_port(machine, "0000:55:00.0", "mlx5_1", add_bridge(machine, "0000:51:01.0", upstream))
    assert placed(facts(machine, nvml), 1)[0] == ["ens192, mlx5_1"]


def test_a_near_port_of_another_node(machine):
    """A port that shares the host bridge is nearer than one of the same node at another."""
    nvml = gpus(machine, "0000:01:00.0")
    add_port(machine, "0000:81:00.0", "mlx5_0", "pci0000:80", 0)
    add_port(machine, "0000:02:00.0", "mlx5_1", "pci0000:00", 0)
    assert placed(facts(machine, nvml), 1)[0] == ["ens192, mlx5_1"]


@pytest.mark.parametrize(
    ("count", "ports", "shown"),
    [
        (4, 4, [0, 1, 2, 3]),
        (4, 2, [0, 1, 0, 1]),
        (3, 2, [0, 1, 0]),
        (2, 4, [0, 1]),
        (8, 1, [0] * 8),
    ],
)
def test_where_all_are_equally_far(machine, count, ports, shown):
    """In a flat VM, where all is PHB, the ports are shared out evenly."""
    nvml = gpus(machine, *(f"0000:{n:02x}:00.0" for n in range(0x20, 0x20 + count)),
                above="pci0000:00")  # fmt: skip
    for number in range(ports):
        add_port(machine, f"0000:{0x40 + number:02x}:00.0", f"mlx5_{number}")
    found, settings = placed(facts(machine, nvml), count)
    assert found == [f"ens192, mlx5_{number}" for number in shown]
    assert settings["NCCL_IB_HCA"] is None


def test_where_no_distance_is_known(machine):
    """Without NUMA nodes and under bridges of their own: no port is called the nearest."""
    nvml = gpus(machine, "0000:01:00.0", "0000:11:00.0", numa=-1)
    for number in (2, 3):
        add_port(machine, f"0000:{number}1:00.0", f"mlx5_{number}", f"pci0000:{number}0", -1)
    assert placed(facts(machine, nvml), 2)[0] == ["ens192", "ens192"]


def test_the_only_port(machine):
    """If there is only one, it is the nearest, however far."""
    nvml = gpus(machine, "0000:01:00.0", "0000:11:00.0", numa=-1)
    add_port(machine, "0000:21:00.0", "mlx5_2", "pci0000:20", -1)
    assert placed(facts(machine, nvml), 2)[0] == ["ens192, mlx5_2"] * 2


def test_mig_devices_of_one_gpu(machine):
    """They sit in one place; a shared pair of ports is shared out among them."""
    nvml = FakeNvml(mig_a100())
    address = snap(machine, nvml).gpus[0].pci_address
    add_gpu(machine, address)
    add_port(machine, "0000:02:00.0", "mlx5_0")
    found = place(facts(machine, nvml), "ens192", 2)
    assert [one.nic for one in found] == ["ens192, mlx5_0"] * 2
    assert len({one.environment["CUDA_VISIBLE_DEVICES"] for one in found}) == 2
    assert {one.environment["NCCL_SOCKET_IFNAME"] for one in found} == {"=ens192"}


def test_a_port_that_is_down(machine):
    """It is excluded for all ranks, and is nobody's nearest."""
    nvml = build_hgx(machine)
    machine.write(machine.sysfs / "class/infiniband/mlx5_3/ports/1/state", "1: DOWN")
    ports, settings = placed(facts(machine, nvml), 8)
    assert settings["NCCL_IB_HCA"] == "^=mlx5_3"
    assert "ens192, mlx5_3" not in ports
    assert ports[4:] == [f"ens192, mlx5_{number}" for number in range(4, 8)]


def test_one_port_of_two_is_down(machine):
    """The device's other port stays."""
    nvml = gpus(machine, "0000:01:00.0")
    device = add_port(machine, "0000:02:00.0", "mlx5_0")
    machine.add_rdma("mlx5_0", device=device, port=2, state="1: DOWN")
    ports, settings = placed(facts(machine, nvml), 1)
    assert (ports, settings["NCCL_IB_HCA"]) == (["ens192, mlx5_0"], "^=mlx5_0:2")


def test_storage_on_another_fabric(machine):
    """InfiniBand and Ethernet ports do not reach each other: the slower fabric is excluded."""
    nvml = gpus(machine, "0000:01:00.0", "0000:03:00.0", above="pci0000:00")
    bond = machine.add_pci("0000:09:00.0", above="pci0000:00")
    machine.add_rdma("mlx5_bond_0", device=bond, link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    for number in (0, 1):
        add_port(machine, f"0000:{0x40 + number:02x}:00.0", f"mlx5_{number}")
    ports, settings = placed(facts(machine, nvml), 2)
    assert settings["NCCL_IB_HCA"] == "^=mlx5_bond_0"
    assert ports == ["ens192, mlx5_0", "ens192, mlx5_1"]


def test_the_fabric_that_all_vms_have(tmp_path):
    """A VM with both takes the one by which it reaches a VM that has only the slower one."""
    both, one = Machine(tmp_path / "both"), Machine(tmp_path / "one")
    for machine, names in ((both, ("mlx5_0", "mlx5_9")), (one, ("mlx5_0",))):
        gpus(machine, "0000:01:00.0")
        for number, name in enumerate(names):
            device = machine.add_pci(f"0000:1{number}:00.0", above="pci0000:00")
            layer = "InfiniBand" if name == "mlx5_9" else "Ethernet"
            rate = "400 Gb/sec (4X NDR)" if name == "mlx5_9" else "100 Gb/sec (4X EDR)"
            machine.add_rdma(name, device=device, link_layer=layer, rate=rate)
    nvml = FakeNvml(h100(bus_id="00000000:01:00.0"))
    told = [facts(machine, nvml) for machine in (both, one)]
    layer = common_layer(map(_snapshot, told))
    assert layer == "Ethernet"
    first, second = (place(each, "ens192", 1, layer=layer)[0] for each in told)
    assert first.environment["NCCL_IB_HCA"] == "^=mlx5_9"
    assert "NCCL_IB_HCA" not in second.environment
    assert first.nic == second.nic == "ens192, mlx5_0"


def test_vms_without_a_common_fabric(machine):
    """Nothing is excluded: the doctor reports it."""
    add_port(machine, "0000:02:00.0", "mlx5_0")
    first = snap(machine)
    assert common_layer([first]) == "InfiniBand"
    assert common_layer([]) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=mlx5_5:1", "mlx5_5"),
        ("mlx5_5,mlx5_6", "mlx5_5"),
        ("^=mlx5_0", "mlx5_1"),
        ("^mlx5_", None),
        ("mlx4", None),
    ],
)
@pytest.mark.parametrize("where", ["machine", "host file"])
def test_what_the_user_has_set_stays(machine, value, shown, where):
    """NCCL_IB_HCA of the environment, of nccl.conf or of the host file: none is overwritten."""
    nvml = build_hgx(machine)
    machine.write(machine.sysfs / "class/infiniband/mlx5_3/ports/1/state", "1: DOWN")
    if where == "machine":
        machine.write(machine.sysfs.parent / "etc/nccl.conf", f"NCCL_IB_HCA={value}\n")
        ports, settings = placed(facts(machine, nvml, NCCL_SOCKET_IFNAME="eth"), 1)
    else:
        own = {"NCCL_IB_HCA": value, "NCCL_SOCKET_IFNAME": "eth"}
        ports, settings = placed(facts(machine, nvml), 1, environment=own)
    assert settings == {"NCCL_IB_HCA": None, "NCCL_SOCKET_IFNAME": None}
    if shown is None:
        assert ports == ["ens192"]
    elif shown == "mlx5_1":
        assert ports[0].startswith("ens192, mlx5_")
        assert ports != ["ens192, mlx5_0"]
    else:
        assert ports == [f"ens192, {shown}"]


@pytest.mark.parametrize("setting", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_rdma_that_is_switched_off(machine, setting):
    """Then no port is anybody's nearest."""
    assert placed(facts(machine, build_hgx(machine), **setting), 8)[0] == ["ens192"] * 8


def test_plain_nics_are_no_ports(machine):
    """A VM without RDMA: the interface alone."""
    nvml = gpus(machine, f"0000:{BUSES[0]:02x}:00.0")
    machine.add_interface("ens192", device=machine.add_pci("0000:02:00.0"))
    assert placed(facts(machine, nvml), 1) == (
        ["ens192"],
        {"NCCL_IB_HCA": None, "NCCL_SOCKET_IFNAME": "=ens192"},
    )


def test_the_nominal_rate_of_what_is_shown(machine):
    """The NIC that is shown for a rank is found again where the rate of its links is read."""
    told = facts(machine, build_hgx(machine))
    shown, _ = placed(told, 8, interface="rdma8")
    snapshot = _snapshot(told)
    assert rate_of_vm(snapshot, "vm1", shown[:1]) == 400
    assert rate_of_vm(snapshot, "vm1", shown) == 3200
    assert rate_of_vm(snapshot, "vm1", [shown[0], shown[0]]) == 400
    assert rate_of_vm(snapshot, "vm1", ["rdma8"]) == 400
    assert isinstance(rate_of_vm(snapshot, "vm1", ["eth0, mlx9_9"]), Unknown)
    assert rate_of_vm(None, "vm1", ["eth0"]) == Unknown("vm1 did not answer")
