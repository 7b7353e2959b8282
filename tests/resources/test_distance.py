"""How far two devices of a VM are apart, by any of their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, Link, h100, mig_a100
from nvml_machines import a100, a100_guest, bridged_a100, hgx_a100, hgx_h100
from pci_host import A, B, C, D, M, N, build_host
from topology_files import GPU, INFINIBAND, azure_ndv4, cpu, pci, switch, system

from workbench.errors import UsageError
from workbench.resources import NcclSettings, Snapshot, Unknown


@pytest.fixture
def host(machine):
    """Four GPUs and two ports on two sockets, without NVLink; `nvml` knows the GPUs."""
    build_host(machine)
    gpus = [h100(uuid=f"GPU-{at[5:7]}", bus_id=f"0000{at.upper()}") for at in (A, B, C, D)]
    return snap(machine, FakeNvml(*gpus))


def test_over_pcie(host):
    """Switches, sockets: the words of `nvidia-smi topo`, for GPUs and NICs alike."""
    assert host.distance(0, 1) == "PIX"
    assert host.distance(0, 2) == "PXB"
    assert host.distance(0, 3) == "SYS"
    assert host.distance(0, "mlx5_0") == "PIX"
    assert host.distance(3, "mlx5_1") == "PHB"
    assert host.distance("mlx5_0", "mlx5_1") == "SYS"


@pytest.mark.parametrize(
    "name", ["0", "GPU 0", "gpu0", 0, "GPU-53", A, f"0000{A}", A.upper(), A[5:]]
)
def test_names_of_a_gpu(host, name):
    """Index, UUID and PCI address, as NVML, sysfs and lspci write them, name one GPU."""
    assert host.distance(name, N) == "PIX"
    assert host.distance(name, host.gpus[0]) == "LOC"


def test_records(host):
    """Records of the snapshot name their device, before and after it was sent."""
    sent = Snapshot.from_json(host.to_json())
    assert sent.distance(host.gpus[3], host.nics[1]) == "PHB"
    assert host.nics[1].pci_address == M


@pytest.mark.parametrize("name", [7, "7", "mlx5_9", "0000:99:00.0", "GPU-none", ""])
def test_a_device_that_is_not_there(host, name):
    """The error names the argument and the devices that exist."""
    said = rf"{name!r}: no such GPU or NIC in this VM\. Use one .*: GPUs 0, 1, 2, 3; NICs mlx5_0"
    with pytest.raises(UsageError, match=said):
        host.distance(name, 0)


def test_a_record_of_another_vm(host):
    """A GPU of another snapshot is no device of this one."""
    with pytest.raises(UsageError, match="a Gpu of another VM"):
        host.distance(0, replace(host.gpus[0], uuid="GPU-other", pci_address="0000:01:00.0"))


def test_a_plain_nic_and_rdma(machine):
    """A NIC that the matrix leaves out is measured when it is asked for."""
    build_host(machine)
    machine.add_interface(
        "eth0", device=machine.add_pci("0000:80:05.0", above="pci0000:80", numa=1)
    )
    assert snap(machine, FakeNvml(h100(bus_id=f"0000{A}"))).distance(0, "eth0") == "SYS"


@pytest.mark.parametrize("build", [hgx_a100, hgx_h100])
def test_a_board_with_switches(machine, build):
    """Over NVSwitch every GPU reaches every other."""
    snapshot = snap(machine, build())
    assert {snapshot.distance(0, other) for other in range(1, 8)} == {"NVLINK"}
    assert snapshot.distance(0, 0) == "LOC"


def test_bridges(machine):
    """Bridged pairs are joined by NVLink, the pairs among each other by PCIe."""
    snapshot = snap(machine, bridged_a100())
    assert snapshot.distance(0, 1) == snapshot.distance(3, 2) == "NVLINK"
    assert snapshot.distance(0, 2) == "SYS"


def test_links_if_nvml_reports_nothing_about_pairs(machine):
    """Links that are up to one another are enough; one that is down is none."""
    buses = ("00000000:17:00.0", "00000000:65:00.0")

    def joined(up):
        link = (Link(peer=buses[1], kind=0, up=up),)
        return snap(machine, FakeNvml(a100(0, buses[0], links=link), a100(1, buses[1])))

    assert joined(up=True).distance(0, 1) == "NVLINK"
    assert joined(up=False).distance(0, 1) != "NVLINK"


def test_vgpus(machine):
    """The driver decides for two vGPUs: NVLink where it permits it, else PCIe."""
    assert snap(machine, a100_guest("A100-40C", 40, 2)).distance(0, 1) == "NVLINK"
    refused = a100_guest("A100-40C", 40, 2, p2p=5)
    assert snap(machine, refused).distance(0, 1) == "PIX"


def test_mig_devices_of_one_gpu(machine):
    """They sit in one place, whichever of them is meant."""
    snapshot = snap(machine, FakeNvml(mig_a100()))
    first, second = (gpu.uuid for gpu in snapshot.gpus)
    assert snapshot.distance(first, second) == "LOC"


def test_topology_file(tmp_path):
    """Of a file's VM: PCIe, and NVLink if the file describes it."""
    file = tmp_path / "topology.xml"
    file.write_text(azure_ndv4())
    snapshot = Snapshot.from_nccl_topology(file)
    assert snapshot.distance("0003:00:00.0", "0104:00:00.0") == "PIX"
    assert snapshot.distance(0, 7) == "SYS"
    links = '<gpu dev="0"><nvlink target="0000:c1:00.0" count="12" tclass="0x068000"/></gpu>'
    file.write_text(
        system(
            cpu(0, switch(1, pci(A, GPU, links), pci(N, INFINIBAND))), cpu(1, pci(B, GPU, links))
        )
    )
    told = Snapshot.from_nccl_topology(file)
    assert (told.distance(0, 1), told.distance(0, N)) == ("NVLINK", "PIX")


def test_what_cannot_be_known(machine):
    """Two host bridges without NUMA nodes, and a NIC that is on no bus: the reason is given."""
    for number, above in ((1, "pci0000:00"), (2, "pci0000:80")):
        pci_device = machine.add_pci(f"0000:0{number}:00.0", numa=-1, above=above)
        machine.add_interface(f"eth{number}", device=pci_device)
    machine.add_interface("bond0")
    snapshot = snap(machine, nccl=NcclSettings({}, machine.sysfs.parent))
    assert "NODE or SYS" in snapshot.distance("eth1", "eth2").reason
    assert snapshot.distance("eth1", "bond0") == Unknown("not a PCI device")
    assert snapshot.distance("bond0", "bond0") == "LOC"


def test_without_pcie(machine):
    """If PCIe could not be read, the driver's own distance of two GPUs remains."""
    snapshot = replace(snap(machine, bridged_a100()), pcie=Unknown("sysfs hangs"))
    assert snapshot.distance(0, 2) == "SYS"
    machine.add_interface("eth0", device=machine.add_pci("0000:00:03.0"))
    assert replace(snap(machine), pcie=Unknown("sysfs hangs")).distance("eth0", "eth0") == "LOC"
