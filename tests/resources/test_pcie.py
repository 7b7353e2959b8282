"""PCIe: distances from sysfs and from topology files, and what NCCL makes of them."""

from __future__ import annotations

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100
from pci_host import (
    GPU,
    NIC,
    A,
    B,
    C,
    D,
    M,
    N,
    add_bridge,
    add_gpu,
    add_port,
    build_host,
    capabilities,
)
from topology_files import cpu, pci, switch, system

from workbench.resources import NcclSettings, Snapshot, Unknown
from workbench.widgets.machine import resources_view


@pytest.fixture
def host(machine):
    return build_host(machine)


def with_file(machine, text, **environ):
    """The machine's snapshot where NCCL_TOPO_FILE names a file with this text."""
    file = machine.sysfs.parent / "topology.xml"
    file.write_text(text)
    environ = {"NCCL_TOPO_FILE": str(file), **environ}
    return snap(machine, nccl=NcclSettings(environ, machine.sysfs.parent))


def by_source(snapshot, a, b):
    return {one.source: one.distance for one in snapshot.pcie.between(a, b)}


def gpudirect(snapshot, gpu, nic):
    (found,) = [one for one in snapshot.pcie.gpudirect if (one.gpu, one.nic) == (gpu, nic)]
    return found


# From sysfs


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (A, B, "PIX"),
        (A, N, "PIX"),
        (A, C, "PXB"),
        (C, N, "PXB"),
        (D, M, "PHB"),
        (A, D, "SYS"),
        (N, M, "SYS"),
    ],
)
def test_distance_on_a_host(host, a, b, distance):
    """One switch is PIX though it is two bridges; two are PXB; the root port is the CPU's."""
    assert by_source(snap(host), a, b) == {"sysfs": distance}
    assert by_source(snap(host), b, a) == {"sysfs": distance}


def test_flat_vm(machine):
    """A VM that shows every device on the root bus: PHB, and NCCL's limit is named."""
    add_gpu(machine, A, numa=-1)
    add_port(machine, N, "mlx5_0", numa=-1)
    snapshot = snap(machine)
    assert by_source(snapshot, A, N) == {"sysfs": "PHB"}
    found = gpudirect(snapshot, A, N)
    assert found.possible is False
    assert "PHB is beyond PXB" in found.why
    assert "NCCL_TOPO_FILE" in found.why


def test_root_complexes_of_one_node(machine):
    """Two host bridges of a NUMA node are NODE for nvidia-smi, PHB for NCCL."""
    add_gpu(machine, A)
    add_port(machine, N, "mlx5_0", "pci0001:00")
    assert by_source(snap(machine), A, N) == {"sysfs": "NODE"}
    why = gpudirect(snap(machine), A, N).why
    assert why.startswith("NODE, which is PHB for NCCL, is beyond")


@pytest.mark.parametrize(("nodes", "distance"), [(1, "NODE"), (2, None)])
def test_root_complexes_without_a_node(machine, nodes, distance):
    """With numa_node -1 two host bridges are distinguished only if there is one node in total."""
    add_gpu(machine, A, numa=-1)
    add_port(machine, N, "mlx5_0", "pci0001:00", numa=-1)
    if nodes == 1:
        (machine.sysfs / "devices/system/node/node1").rmdir()
    snapshot = snap(machine, FakeNvml(h100()))
    (found,) = snapshot.pcie.between(A, N)
    if distance is None:
        assert "NODE or SYS" in found.distance.reason
        assert "? GPU0-NIC0: NODE or SYS" in str(snapshot)
    else:
        assert found.distance == distance


def test_half_a_node(machine):
    """NCCL takes -1 for a node like any other: a GPU on node 0 and a NIC on none are SYS for it."""
    add_gpu(machine, A, numa=0)
    add_port(machine, N, "mlx5_0", "pci0001:00", numa=-1)
    assert isinstance(snap(machine).pcie.distance(A, N).distance, Unknown)
    assert gpudirect(snap(machine), A, N).why.startswith("SYS is beyond PXB")


def test_plain_nics_stay_out_where_there_is_rdma(host):
    """A management NIC is measured only where nothing better is there."""
    host.add_pci("0000:00:03.0", vendor="0x1af4")
    measured = {address for one in snap(host).pcie.distances for address in (one.a, one.b)}
    assert measured == {A, B, C, D, N, M}


def test_a_vms_display_is_no_gpu(machine):
    """Class 0x03 of another maker than NVIDIA does not compute."""
    machine.add_pci("0000:00:0f.0", vendor="0x15ad", pci_class="0x030000")
    assert snap(machine).pcie.devices == ()


def test_links(host):
    """The slower of device and port counts; what the kernel knows not is no number."""
    for address, speed, width in ((A, "32.0 GT/s PCIe", 16), (B, "Unknown", 255)):
        folder = (host.sysfs / "bus/pci/devices" / address).resolve()
        host.write(folder / "max_link_speed", f"{speed}\n")
        host.write(folder / "max_link_width", f"{width}\n")
        if address == A:
            host.write(folder.parent / "max_link_speed", "16.0 GT/s PCIe\n")
            host.write(folder.parent / "max_link_width", "16\n")
    tree = snap(host).pcie.tree("sysfs")
    assert (tree.find(A).link_gtps, tree.find(A).link_width) == (16.0, 16)
    assert isinstance(tree.find(B).link_gtps, Unknown)
    assert isinstance(tree.find(B).link_width, Unknown)


@pytest.mark.parametrize(
    ("config", "acs", "ats"),
    [
        (capabilities((0x0001, 0), (0x000D, 0x001D), (0x000F, 0x8000)), "redirect", "on"),
        (capabilities((0x000D, 0x0001), (0x000F, 0)), "off", "off"),
        (capabilities((0x0001, 0)), "none", "none"),
        (bytes(4096), "none", "none"),
    ],
)
def test_acs_and_ats(host, config, acs, ats):
    """If the configuration space can be read, ACS and ATS are reported."""
    (host.sysfs / "bus/pci/devices" / A / "config").write_bytes(config)
    device = snap(host).pcie.tree("sysfs").find(A)
    assert (device.acs, device.ats) == (acs, ats)


@pytest.mark.parametrize(
    ("size", "reason"), [(64, "needs root"), (256, "no PCI Express"), (None, "cannot be read")]
)
def test_acs_that_cannot_be_read(host, size, reason):
    """64 bytes are what others than root get: not known, which is not none."""
    if size is not None:
        (host.sysfs / "bus/pci/devices" / A / "config").write_bytes(bytes(size))
    device = snap(host).pcie.tree("sysfs").find(A)
    assert reason in device.acs.reason
    assert reason in device.ats.reason


def test_acs_on_the_way_is_reported(host):
    """A near NIC behind a port that redirects is near for NCCL, but slow."""
    port = host.sysfs / "bus/pci/devices/0000:5a:03.0/config"
    port.write_bytes(capabilities((0x000D, 0x000C)))
    found = gpudirect(snap(host), A, N)
    assert found.possible is True
    assert "ACS at 0000:5a:03.0" in found.why


# GPUDirect RDMA


@pytest.mark.parametrize(
    ("level", "gpu", "nic", "possible"),
    [
        (None, A, N, True),
        (None, C, N, True),
        (None, D, M, False),
        ("PIX", C, N, False),
        ("PHB", D, M, True),
        ("PHB", A, M, False),
        ("SYS", A, M, True),
        ("0", A, N, False),
        ("4", A, M, True),
        ("nonsense", D, M, False),
    ],
)
def test_gpudirect_by_level(host, level, gpu, nic, possible):
    """NCCL's limit is PXB, unless NCCL_NET_GDR_LEVEL moves it, by name or old number."""
    environ = {} if level is None else {"NCCL_NET_GDR_LEVEL": level}
    snapshot = snap(host, nccl=NcclSettings(environ, host.sysfs.parent))
    found = gpudirect(snapshot, gpu, nic)
    assert found.possible is possible
    assert ("NCCL_NET_GDR_LEVEL" in found.why) is (level not in (None, "nonsense"))


def test_settings_in_nccls_files(host):
    """NCCL's files count after the environment: the user's, then the machine's."""
    root = host.sysfs.parent
    host.write(root / "etc/nccl.conf", "# all\nNCCL_NET_GDR_LEVEL=SYS\nNCCL_DEBUG=INFO\n")
    home = {"HOME": str(root / "home")}
    assert NcclSettings(home, root).get("NCCL_NET_GDR_LEVEL") == "SYS"
    host.write(root / "home/.nccl.conf", "NCCL_NET_GDR_LEVEL=PIX\n")
    assert NcclSettings(home, root).get("NCCL_NET_GDR_LEVEL") == "PIX"
    assert NcclSettings({**home, "NCCL_DEBUG": "WARN"}, root).get("NCCL_DEBUG") == "WARN"
    assert NcclSettings(home, root).get("NCCL_ALGO") is None


def test_plain_nic_has_no_gpudirect(machine):
    """A NIC without RDMA is out, however near."""
    bridge = add_bridge(machine, "0000:50:00.0", add_bridge(machine, "0000:00:01.0"))
    for add, address in ((add_gpu, A), (machine.add_pci, N)):
        port = add_bridge(machine, f"0000:51:0{address[6]}.0", bridge)
        add(machine, address, port) if add is add_gpu else add(address, above=port)
    found = gpudirect(snap(machine), A, N)
    assert found.possible is False
    assert "no RDMA device" in found.why


def test_peer_memory(machine):
    """The module is named with its version; without it, the alternatives are listed."""
    assert "dma-buf" in snap(machine).pcie.peer_memory.reason
    machine.write(machine.sysfs / "module/nvidia_peermem/version", "580.105.08\n")
    assert snap(machine).pcie.peer_memory == "nvidia_peermem 580.105.08"


# A topology file and sysfs

TOLD = system(cpu(0, switch(1, pci(A, GPU), pci(N, NIC)), switch(2, pci(B, GPU))))


@pytest.fixture
def flat(machine):
    for address in (A, B):
        add_gpu(machine, address, numa=-1)
    add_port(machine, N, "mlx5_0", numa=-1)
    return machine


def test_file_and_sysfs_differ(flat):
    """The distances that NCCL reads and the guest sees are both there, each with its source."""
    snapshot = with_file(flat, TOLD)
    assert by_source(snapshot, A, N) == {"nccl topology file": "PIX", "sysfs": "PHB"}
    assert by_source(snapshot, B, N) == {"nccl topology file": "PHB", "sysfs": "PHB"}
    (difference,) = snapshot.pcie.differences()
    assert {difference.a, difference.b} == {A, N}
    assert snapshot.pcie.distance(A, N).source == "nccl topology file"
    assert gpudirect(snapshot, A, N).possible is True
    assert gpudirect(snapshot, A, N).source == "nccl topology file"
    assert gpudirect(snapshot, B, N).possible is False


def test_node_is_no_difference(machine):
    """NODE of sysfs and PHB of a file are the same thing in NCCL's words."""
    add_gpu(machine, A)
    add_port(machine, N, "mlx5_0", "pci0001:00")
    snapshot = with_file(machine, system(cpu(0, pci(A, GPU), pci(N, NIC))))
    assert by_source(snapshot, A, N) == {"nccl topology file": "PHB", "sysfs": "NODE"}
    assert snapshot.pcie.differences() == ()


def test_device_that_the_file_leaves_out(flat):
    """A GPU that the file does not name is added from sysfs, with a remark."""
    snapshot = with_file(flat, system(cpu(0, switch(1, pci(A, GPU), pci(N, NIC)))))
    assert by_source(snapshot, B, N) == {"sysfs": "PHB"}
    assert isinstance(gpudirect(snapshot, B, N).possible, Unknown)
    assert "not in that file, so NCCL uses sysfs: 0000:54:00.0" in str(
        snap_with_gpus(flat, system(cpu(0, switch(1, pci(A, GPU), pci(N, NIC)))))
    )


def snap_with_gpus(machine, text):
    file = machine.sysfs.parent / "topology.xml"
    file.write_text(text)
    settings = NcclSettings({"NCCL_TOPO_FILE": str(file)}, machine.sysfs.parent)
    return snap(machine, FakeNvml(h100()), nccl=settings)


def test_the_drivers_own_file(flat):
    """Without NCCL_TOPO_FILE, NCCL reads the file of nvidia-topologyd, where there is one."""
    path = flat.sysfs.parent / "var/run/nvidia-topologyd/virtualTopology.xml"
    assert "NCCL_TOPO_FILE is not set" in snap(flat).pcie.topology_file.reason
    flat.write(path, TOLD)
    snapshot = snap(flat)
    assert snapshot.pcie.topology_file == str(path)
    assert snapshot.pcie.distance(A, N).distance == "PIX"


def test_file_that_is_not_there(flat):
    """A setting that names nothing has no effect, and is reported."""
    settings = NcclSettings({"NCCL_TOPO_FILE": "/no/such.xml"}, flat.sysfs.parent)
    snapshot = snap(flat, nccl=settings)
    assert "/no/such.xml, which does not exist" in snapshot.pcie.topology_file.reason
    assert by_source(snapshot, A, N) == {"sysfs": "PHB"}
    assert snapshot.probes["pcie"].status == "ok"


def test_broken_file_costs_only_itself(flat):
    """A truncated file is reported; sysfs's distances stay."""
    snapshot = with_file(flat, TOLD[:200])
    assert "truncated" in snapshot.pcie.topology_file.reason
    assert by_source(snapshot, A, N) == {"sysfs": "PHB"}


def test_machine_without_pci(machine):
    """A container without PCI is reported as such."""
    (machine.sysfs / "bus/pci/devices").rmdir()
    snapshot = snap(machine)
    assert (snapshot.probes["pcie"].status, snapshot.pcie.trees) == ("absent", ())


# As text and as JSON


def test_matrix(flat):
    """GPUs and RDMA ports form a matrix with a legend, differences and the verdict below."""
    text = str(snap_with_gpus(flat, TOLD))
    lines = text[text.index("PCIe distances") :].splitlines()
    assert lines[1].split() == ["GPU0", B, "NIC0"]
    assert lines[2].split() == ["GPU0", "X", "PHB", "PIX"]
    assert lines[4].split() == ["NIC0", "PIX", "PHB", "X"]
    assert "PIX one PCIe switch" in lines[5]
    assert "NIC0 mlx5_0" in text
    assert "nccl topology file says PIX, sysfs says PHB: GPU0-NIC0" in text
    assert "GPUDirect RDMA possible: GPU0-NIC0 (PIX is within PXB, NCCL's limit)" in text


def test_one_gpu_alone(machine):
    """Without anything to measure, a sentence replaces the matrix."""
    add_gpu(machine, A)
    assert "PCIe: no distances" in str(snap(machine, FakeNvml(h100())))


def test_many_nics(machine):
    """On a host with more than 32 RDMA functions, GPUs are still measured against each."""
    add_gpu(machine, A)
    for number in range(33):
        add_port(machine, f"0000:{0x60 + number:02x}:00.0", f"mlx5_{number}")
    distances = snap(machine).pcie.distances
    assert len(distances) == 33
    assert {one.a for one in distances} == {A}


def test_an_edited_ring(machine):
    """A snapshot whose bridges were edited into a ring is read, and asked, without end or harm."""
    bridge = add_bridge(machine, "0000:50:00.0")
    add_gpu(machine, A, bridge)
    text = snap(machine).to_json().replace('"parent": "pci0000:00"', f'"parent": "{A}"')
    assert Snapshot.from_json(text).pcie.tree("sysfs").above(A) == ("0000:50:00.0", A)


def test_matrix_in_a_notebook(flat):
    """A notebook shows the same matrix below its tables."""
    html = resources_view(with_file(flat, TOLD))._repr_html_()
    assert "PIX one PCIe switch" in html
    assert "NCCL&#x27;s limit" in html


def test_no_matrix_without_gpus_and_rdma(machine):
    """A plain VM is spared the matrix."""
    machine.add_interface("eth0", device=machine.add_pci("0000:00:03.0"))
    assert "PCIe" not in str(snap(machine))


def test_json(host):
    """All of it comes back from JSON equal."""
    snapshot = with_file(host, TOLD)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
