"""NCCL's topology files: read as NCCL reads them, written as NCCL takes them."""

from __future__ import annotations

import itertools
import os
import re
import threading

import pytest
from fake_machine import snap
from pci_host import A, B, C, D, M, N, build_host
from topology_files import GPU, INFINIBAND, aws_p4d, azure_ndv4, cpu, pci, switch, system

from workbench.doctor import diagnose
from workbench.errors import SnapshotError
from workbench.resources import NcclSettings, Snapshot, Unknown

NVSWITCH = "0x068000"
NOT_IN_FILE = "not in a topology file"


def distance(snapshot, a, b):
    (found,) = snapshot.pcie.between(a, b)
    assert found.source == "nccl topology file"
    return found.distance


# Vendors' files


def test_azure_ndv4(read_topology):
    """8 GPUs, 8 InfiniBand ports: within a CPU one switch, all else SYS; each GPU has two ports."""
    snapshot = read_topology(azure_ndv4())
    assert (len(snapshot.gpus), len(snapshot.nics)) == (8, 8)
    assert {nic.kind for nic in snapshot.nics} == {"rdma"}
    assert distance(snapshot, "0003:00:00.0", "0104:00:00.0") == "PIX"
    assert distance(snapshot, "0003:00:00.0", "0004:00:00.0") == "PIX"
    assert distance(snapshot, "0003:00:00.0", "0101:00:00.0") == "SYS"
    assert sum(one.possible is True for one in snapshot.pcie.gpudirect) == 16
    assert snapshot.pcie.tree("nccl topology file").find("000d:00:00.0").numa_node == 2


def test_aws_p4d(read_topology):
    """8 GPUs, 4 EFA ports: PIX in a group, PHB between the two of a CPU, SYS across."""
    snapshot = read_topology(aws_p4d())
    assert (len(snapshot.gpus), len(snapshot.nics)) == (8, 4)
    assert distance(snapshot, "0000:10:1c.0", "0000:10:1b.0") == "PIX"
    assert distance(snapshot, "0000:10:1c.0", "0000:20:1b.0") == "PHB"
    assert distance(snapshot, "0000:10:1c.0", "0000:90:1b.0") == "SYS"
    assert sum(one.possible is True for one in snapshot.pcie.gpudirect) == 8


@pytest.mark.parametrize("text", [azure_ndv4(), aws_p4d()], ids=["azure", "aws"])
def test_what_a_file_makes_can_be_used(read_topology, text):
    """Its snapshot goes through JSON, reads well, and the doctor has nothing to say of unknowns."""
    snapshot = read_topology(text)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert str(snapshot).startswith("Host: unknown (only the topology file")
    assert "PCIe distances, by nccl topology file" in str(snapshot)
    assert diagnose(snapshot) == []


@pytest.mark.parametrize("text", [azure_ndv4(), aws_p4d()], ids=["azure", "aws"])
def test_round_trip(read_topology, text):
    """Written and read again, a tree is the same to its last attribute."""
    first = read_topology(text)
    again = read_topology(first.to_nccl_topology())
    assert again.pcie == first.pcie


def test_nccl_takes_what_is_written(read_topology):
    """NCCL's own parser takes no XML declaration and no tabs, and wants the version first."""
    text = read_topology(azure_ndv4()).to_nccl_topology()
    assert text.startswith('<system version="1">\n')
    assert "\t" not in text
    assert re.findall(r"<(\w+)", text).count("pci") == 20


# What else such files contain


def test_nested_switches(read_topology):
    """Any switch above another makes PXB, whichever side it is on."""
    inner = switch(2, pci(A, GPU), pci(B, GPU))
    snapshot = read_topology(
        system(cpu(0, switch(1, inner, pci(C, GPU), switch(3, pci(N, INFINIBAND)))))
    )
    assert distance(snapshot, A, B) == "PIX"
    assert distance(snapshot, A, C) == "PXB"
    assert distance(snapshot, A, N) == "PXB"
    assert distance(snapshot, C, N) == "PXB"
    assert snapshot.pcie == read_topology(snapshot.to_nccl_topology()).pcie


def test_devices_below_the_cpu(read_topology):
    """Without any switch the CPU is between them; upper case and long domains are sysfs's."""
    long = "00000000:" + A[5:].upper()
    snapshot = read_topology(system(cpu(0, pci(long, GPU), pci(N, INFINIBAND))))
    assert distance(snapshot, A, N) == "PHB"


def test_no_numa_node(read_topology):
    """Numaid -1 is no node; two CPU elements of one numaid are one CPU, as NCCL has it."""
    snapshot = read_topology(system(cpu(-1, pci(A, GPU)), cpu(-1, pci(N, INFINIBAND))))
    assert "-1" in snapshot.nics[0].numa_node.reason
    assert distance(snapshot, A, N) == "PHB"
    assert 'numaid="-1"' in snapshot.to_nccl_topology()


def test_dump_of_several_hosts(read_topology):
    """In NCCL's dump of several hosts, node 0 of one is not node 0 of another."""
    cpus = (
        f'<cpu host_hash="0x{n}" numaid="0">{pci(one, GPU)}</cpu>' for n, one in ((1, A), (2, B))
    )
    snapshot = read_topology(system(*cpus))
    assert distance(snapshot, A, B) == "SYS"
    assert read_topology(snapshot.to_nccl_topology()).pcie == snapshot.pcie


def test_missing_attributes(read_topology):
    """Omitted values are unknown with the reason; a device is identified by its content."""
    text = (
        f'<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0">'
        f'<pci busid="{A}"><gpu dev="0" sm="80"/></pci>'
        f'<pci busid="{N}" link_speed="" link_width=""><nic><net name="mlx5_0"/></nic></pci>'
        f'<pci busid="{B}"/></pci></cpu></system>'
    )
    snapshot = read_topology(text)
    tree = snapshot.pcie.tree("nccl topology file")
    kinds = {one.address: one.kind for one in tree.devices}
    unclear = kinds.pop(B)
    assert kinds == {"ffff:ff:01.0": "bridge", A: "gpu", N: "nic"}
    assert "gives no class, and NCCL reads it from sysfs" in unclear.reason
    assert isinstance(tree.find(N).link_gtps, Unknown)
    assert "no vendor" in tree.find(A).vendor.reason
    assert (snapshot.nics[0].name, snapshot.nics[0].rdma_device) == ("mlx5_0", "mlx5_0")
    assert distance(snapshot, A, N) == "PIX"


def test_nvlinks(read_topology):
    """NVLink elements are kept, to GPUs and to switches, and written again."""
    links = (
        f'<gpu dev="0"><nvlink target="{B.upper()}" count="4" tclass="0x030200"/>'
        f'<nvlink target="0000:c1:00.0" count="2" tclass="{NVSWITCH}"/></gpu>'
    )
    snapshot = read_topology(system(cpu(0, pci(A, GPU, links), pci(B, GPU))))
    tree = snapshot.pcie.tree("nccl topology file")
    assert [(one.gpu, one.peer, one.count) for one in tree.nvlinks] == [
        (A, B, 4),
        (A, "0000:c1:00.0", 2),
    ]
    assert tree.nvlinks[1].peer_class == NVSWITCH
    assert read_topology(snapshot.to_nccl_topology()).pcie == snapshot.pcie


def test_what_gpus_say_of_nvlink(read_topology):
    """A GPU's links are those that the file counts, each with its peer; rates are not there."""
    links = (
        f'<gpu sm="103"><nvlink target="{B}" count="2" tclass="0x030200"/>'
        f'<nvlink target="fffffff:ff:ff.0" count="1" tclass="{NVSWITCH}"/></gpu>'
    )
    first, second = read_topology(system(cpu(0, pci(A, GPU, links), pci(B, GPU)))).gpus
    assert [(one.number, one.state, one.peer) for one in first.nvlink.links] == [
        (0, "up", "gpu"),
        (1, "up", "gpu"),
        (2, "up", "switch"),
    ]
    assert first.nvlink.links[0].peer_pci_address == B
    assert isinstance(first.nvlink.links[2].peer_pci_address, Unknown)
    assert isinstance(first.nvlink.nominal_gb_per_s, Unknown)
    assert (first.compute_capability, second.nvlink) == ("10.3", Unknown(NOT_IN_FILE))


def test_switch_that_the_vm_does_not_show(read_topology):
    """NCCL's dump in such a VM has a target that is no address: it means a switch."""
    links = '<gpu><nvlink target="fffffff:ffff:ff" count="12"/></gpu>'
    snapshot = read_topology(system(cpu(0, pci(A, GPU, links)), cpu(1, pci(B, GPU, links))))
    assert {one.peer for one in snapshot.gpus[0].nvlink.links} == {"switch"}
    assert snapshot.distance(0, 1) == "NVLINK"
    assert "  NVLinks of GPU0, GPU1: 12 to the switch" in str(snapshot)
    assert read_topology(snapshot.to_nccl_topology()).pcie == snapshot.pcie


def test_the_content_of_an_element_counts_more_than_its_class(read_topology):
    """NCCL takes an element with a gpu or a nic in it for one, whatever its class is."""
    inside = pci(A, "0x120000", "<gpu/>"), pci(N, "0x088000", '<nic><net name="x"/></nic>')
    snapshot = read_topology(system(cpu(0, switch(1, *inside))))
    assert distance(snapshot, A, N) == "PIX"
    assert (len(snapshot.gpus), len(snapshot.nics)) == (1, 1)


def test_a_boards_display_controller_is_no_gpu(read_topology):
    """It has a GPU's class, another maker, and no gpu element; NCCL passes over it too."""
    board = pci("0000:03:00.0", "0x030000", vendor="0x1a03")
    snapshot = read_topology(system(cpu(0, pci(A, GPU, vendor="0x10de"), board)))
    assert [gpu.pci_address for gpu in snapshot.gpus] == [A]


def test_nic_at_the_cpu(read_topology):
    """NCCL accepts a nic element directly in the cpu, as clouds' virtual NICs have it."""
    net = '<nic><net name="eth0" speed="100000" gdr="0"/></nic>'
    snapshot = read_topology(system(cpu(0, pci(A, GPU), net), cpu(1, pci(B, GPU))))
    (nic,) = snapshot.nics
    assert (nic.name, nic.kind, nic.rate_gbps) == ("eth0", "virtual", 100.0)
    assert [distance(snapshot, one, nic.pci_address) for one in (A, B)] == ["PHB", "SYS"]
    assert {one.possible for one in snapshot.pcie.gpudirect} == {False}
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert "<nic" not in snapshot.to_nccl_topology()


def test_gpudirect_that_the_file_rules_out(read_topology):
    """A gdr of 0 is kept, however near the two are."""
    nic = pci(N, INFINIBAND, '<nic><net name="mlx5_0" gdr="0"/></nic>')
    snapshot = read_topology(system(cpu(0, switch(1, pci(A, GPU, '<gpu gdr="1"/>'), nic))))
    (verdict,) = snapshot.pcie.gpudirect
    assert (distance(snapshot, A, N), verdict.possible) == ("PIX", False)
    assert verdict.why == f"the topology file excludes {N} (gdr=0)"
    again = read_topology(snapshot.to_nccl_topology())
    assert [one.possible for one in again.pcie.gpudirect] == [False]


def test_gpus_joined_to_their_cpu_by_c2c(read_topology):
    """On Grace a NIC at the GPU's own CPU is near enough, one at another CPU is not."""
    grace = pci(A, GPU, '<gpu sm="90"><c2c bw="44712" count="5"/></gpu>')
    snapshot = read_topology(
        system(cpu(0, grace, pci(N, INFINIBAND)), cpu(1, pci(M, INFINIBAND), pci(B, GPU)))
    )
    verdicts = {(one.gpu, one.nic): one.possible for one in snapshot.pcie.gpudirect}
    assert verdicts == {(A, N): True, (A, M): False, (B, N): False, (B, M): False}
    assert read_topology(snapshot.to_nccl_topology()).pcie == snapshot.pcie


def test_unknown_elements_are_passed_over(read_topology):
    """NCCL ignores them, with their content."""
    extra = f'<vendor note="&lt;x&gt;">{cpu(7, pci(D, GPU))}</vendor>'
    snapshot = read_topology(system(extra, cpu(0, pci(A, GPU))))
    assert [gpu.pci_address for gpu in snapshot.gpus] == [A]


# From sysfs


def test_topology_of_sysfs(machine, read_topology):
    """A tree of sysfs, written as NCCL folds it, has the same distances when it is read."""
    seen = snap(build_host(machine))
    told = read_topology(seen.to_nccl_topology())
    for a, b in itertools.combinations((A, B, C, D, N, M), 2):
        (by_sysfs,) = seen.pcie.between(a, b)
        assert distance(told, a, b) == by_sysfs.distance
    # A switch is one element, the root port none.
    assert told.pcie.tree("nccl topology file").above(A) == ("0000:52:00.0", "0000:50:00.0", "cpu0")


def test_nothing_to_write(machine):
    """A VM without GPU and NIC on PCI has no topology, and the error has that reason."""
    with pytest.raises(SnapshotError, match="neither a GPU nor a NIC"):
        snap(machine).to_nccl_topology()


# Bad files

LAUGHS = '<!DOCTYPE s [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>' + system(cpu(0, pci(A, GPU)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not complete XML"),
        ("<system", "truncated"),
        (azure_ndv4()[:300], "truncated"),
        ("{}", "not complete XML"),
        (LAUGHS, "document type"),
        ("<nvidia_smi_log/>", "<nvidia_smi_log> where a topology file has <system>"),
        ('<graphs version="1"/>', "<graphs> where"),
        (system(version="2"), "version '2' where NCCL reads '1'"),
        ("<system/>", "version None"),
        (system(), "no pci element that is a GPU or a NIC"),
        (system(cpu(0, switch(1))), "no pci element that is a GPU or a NIC"),
        (system(cpu(0, '<pci class="0x030200"/>')), "line 3: found a pci element with busid ''"),
        (system(cpu(0, pci("53:00", GPU))), "busid '53:00'. Write it as"),
        (system(cpu(0, pci(A, GPU), pci(A, GPU))), f"busid {A} a second time"),
        (system(cpu(0, pci(A, GPU, '<gpu><nvlink target="x"/></gpu>'))), "nvlink with target 'x'"),
        ("<system version='1'>" + "<a>" * 100, "nested elements"),
        (system("<a/>" * 20000), "more than 16384 elements"),
        (system("<!--" + " " * (1 << 20) + "-->"), "larger than 1 MiB"),
    ],
)
def test_bad_file(read_topology, text, message):
    """A file that is no topology is refused: what was found, where, and what to do."""
    with pytest.raises(SnapshotError, match=re.escape(message)) as raised:
        read_topology(text)
    assert "topology.xml" in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    """No file, a folder, and a pipe that nobody writes to are errors of ours, at once."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "", "pipe"):
        with pytest.raises(SnapshotError):
            Snapshot.from_nccl_topology(tmp_path / name)


def test_a_file_that_hangs_costs_only_pcie(machine):
    """A topology file on a dead mount leaves the rest of the snapshot intact."""
    mounted = threading.Event()

    class Dead(NcclSettings):
        def topology_file(self):
            mounted.wait(60)
            return super().topology_file()

    machine.add_interface("eth0")
    try:
        snapshot = snap(machine, nccl=Dead({}, machine.sysfs.parent), time_limit_s=3)
    finally:
        mounted.set()
    assert snapshot.probes["pcie"].status == "failed"
    assert "did not answer within 3 s" in snapshot.pcie.reason
    assert [nic.name for nic in snapshot.nics] == ["eth0"]
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    with pytest.raises(SnapshotError, match="did not answer"):
        snapshot.to_nccl_topology()
