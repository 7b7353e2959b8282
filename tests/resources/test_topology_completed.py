"""Topology files that leave out what NCCL reads from sysfs: alone, and on their machine."""

from __future__ import annotations

import re

import pytest
from fake_machine import Machine, snap
from fake_nvml import FakeNvml, h100
from pci_host import A, B, C, D, M, N, add_gpu, add_port, build_host
from topology_files import aws_p4d, azure_ndv4

from workbench import Snapshot, cli, diagnose, diagnose_all
from workbench.doctor import describe, describe_all
from workbench.resources import Distance, NcclSettings, Unknown
from workbench.resources.distance_matrix import matrix
from workbench.resources.pcie.records import SYSFS, TOPOLOGY_FILE
from workbench.server.handlers import read_sent_file as read_for_page
from workbench.widgets.machine import ResourcesView, doctor_view

LAID_OUT = f"""<system version="1">
  <cpu numaid="0">
    <pci busid="{A}"/>
    <pci busid="{N}"/>
  </cpu>
  <cpu numaid="1">
    <pci busid="{D}"/>
    <pci busid="{M}"/>
  </cpu>
</system>
"""


def bare(text):
    """The same file with nothing but bus ids in its leaves, and in its switches."""
    return re.sub(r'<pci busid="([^"]+)"(?: \w+="[^"]*")*', r'<pci busid="\1"', text)


def on_machine(machine, text, nvml=None):
    """A snapshot of a machine that NCCL is given a file on."""
    file = machine.sysfs.parent / "told.xml"
    file.write_text(text)
    settings = NcclSettings({"NCCL_TOPO_FILE": str(file)}, machine.sysfs.parent)
    return snap(machine, nvml, nccl=settings)


# The file alone


@pytest.mark.parametrize(
    ("text", "count"), [(LAID_OUT, 4), (bare(azure_ndv4()), 16), (bare(aws_p4d()), 12)]
)
def test_a_file_of_bus_ids_alone(read_topology, text, count):
    """Devices are there by address and NUMA node, of unknown kind; nothing is claimed of them."""
    snapshot = read_topology(text)
    assert (snapshot.gpus, snapshot.nics) == ((), ())
    tree = snapshot.pcie.tree(TOPOLOGY_FILE)
    unclear = [one for one in tree.devices if isinstance(one.kind, Unknown)]
    assert len(unclear) == count
    for part in ("gpus", "nics"):
        assert snapshot.probes[part].status == "unknown"
        assert f"any of {count} devices may be one" in snapshot.probes[part].reason
    shown = str(snapshot)
    for one in unclear:
        assert one.address in shown
        assert isinstance(one.numa_node, int)
    assert "NUMA node 1: DEV" in shown
    assert "of unknown kind (the topology file gives no class, and NCCL reads it from" in shown
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert read_topology(snapshot.to_nccl_topology()).pcie.distances == snapshot.pcie.distances


def test_distances_of_devices_of_unknown_kind(read_topology):
    """They are found by address and measured; a wrong name lists them."""
    snapshot = read_topology(bare(azure_ndv4()))
    assert snapshot.distance("0003:00:00.0", "0104:00:00.0") is Distance.PIX
    assert snapshot.distance("0003:00:00.0", "0001:00:00.0") is Distance.SYS
    assert snapshot.distance("0003:00:00.0", "0003:00:00.0") is Distance.LOC
    with pytest.raises(Exception, match=r"devices of unknown kind 0003:00:00\.0, 0004:00:00\.0"):
        snapshot.distance(0, "0003:00:00.0")
    assert any("DEV0" in line and "PIX" in line for line in matrix(snapshot))


def test_the_doctor_of_such_a_file(read_topology, machine):
    """It is readable, and no VM is compared with another by what a file leaves out."""
    snapshot = read_topology(bare(aws_p4d()))
    assert diagnose(snapshot) == []
    text = describe(snapshot, [], 500)
    assert "(GPUs unknown, NICs unknown, 12 devices of unknown kind): nothing wrong" in text
    assert "GPUs unknown" in repr(doctor_view(snapshot))
    live = snap(build_host(machine), FakeNvml(h100(bus_id=f"0000{A}")))
    pair = {"file": snapshot, "live": live}
    assert "gpus_unlike" not in {one.rule for one in diagnose_all(pair)}
    assert "rdma_unlike" not in {one.rule for one in diagnose_all(pair)}
    describe_all(pair, {name: diagnose(one) for name, one in pair.items()}, diagnose_all(pair))


def test_a_files_gpus_are_no_other_model(read_topology, machine):
    """Model, form and RDMA, which no file has, are no difference to a live VM."""
    live = snap(build_host(machine), FakeNvml(h100(bus_id=f"0000{A}")))
    told = read_topology(live.to_nccl_topology())
    rules = {one.rule: one.evidence for one in diagnose_all({"file": told, "live": live})}
    assert "rdma_unlike" not in rules
    assert "model" not in rules.get("gpus_unlike", "")


def test_every_view_takes_it(read_topology, tmp_path, capsys):
    """Notebook, command line and the server's reader of files."""
    snapshot = read_topology(LAID_OUT)
    html = ResourcesView(snapshot)._repr_html_()
    assert "of unknown kind" in html
    assert A in html
    file = tmp_path / "topology.xml"
    cli.main(["resources", "--topology", str(file)])
    cli.main(["doctor", str(file)])
    assert "4 devices of unknown kind" in " ".join(capsys.readouterr().out.split())
    assert "unknown" in read_for_page("topology.xml", file.read_bytes())


def test_some_are_known(read_topology):
    """Unknown values of some devices do not hide the known values of others."""
    text = LAID_OUT.replace(f'"{A}"', f'"{A}" class="0x030200"')
    snapshot = read_topology(text)
    assert [gpu.pci_address for gpu in snapshot.gpus] == [A]
    assert (snapshot.probes["gpus"].status, snapshot.probes["nics"].status) == ("ok", "unknown")
    assert "(1 GPU, NICs unknown, 3 devices of unknown kind)" in describe(snapshot, [], 500)
    assert snapshot.distance(0, N) is Distance.PHB


# On its machine


def test_sysfs_completes_the_file(machine):
    """Kind, class, vendor, device and link of each come from sysfs; the file's places stay."""
    snapshot = on_machine(build_host(machine), LAID_OUT)
    told, seen = (snapshot.pcie.tree(source) for source in (TOPOLOGY_FILE, SYSFS))
    assert snapshot.pcie.topology_file_state.status == "read"
    for address, kind in ((A, "gpu"), (D, "gpu"), (N, "nic"), (M, "nic")):
        one, other = told.find(address), seen.find(address)
        assert (one.kind, other.kind) == (kind, kind)
        assert isinstance(one.pci_class, str)
        for name in ("pci_class", "vendor", "device", "subsystem_vendor", "link_gtps"):
            values = getattr(one, name), getattr(other, name)
            assert values[0] == values[1] or all(isinstance(x, Unknown) for x in values), name
    assert snapshot.pcie.between(A, N)[0].distance == "PHB"  # by the file
    assert {one.rule for one in diagnose(snapshot)}.isdisjoint(
        {"topology_file_unreadable", "topology_file_refused"}
    )


def test_what_the_file_says_stays(machine):
    """But for the class, which NCCL always reads from sysfs; empty is not absent."""
    text = LAID_OUT.replace(
        f'"{A}"', f'"{A}" class="0x020000" vendor="0x1234" link_speed="" link_width="4"'
    )
    device = on_machine(build_host(machine), text).pcie.tree(TOPOLOGY_FILE).find(A)
    assert (device.kind, device.pci_class, device.vendor) == ("gpu", "0x030200", "0x1234")
    assert (isinstance(device.link_gtps, Unknown), device.link_width) == (True, 4)


def test_a_device_that_is_not_on_the_machine(machine):
    """It stays unknown, with that reason, and nothing else is affected."""
    add_gpu(machine, A)
    add_port(machine, N, "mlx5_0")
    snapshot = on_machine(machine, LAID_OUT)
    missing = snapshot.pcie.tree(TOPOLOGY_FILE).find(D)
    assert missing.kind == Unknown(
        "the topology file gives no class, and this machine has no device at that address"
    )
    assert snapshot.distance(A, N) == "PHB"
    assert "DEV" not in str(snapshot)
    assert snapshot.pcie.topology_file_state.status == "read"


@pytest.mark.parametrize("attributes", ["", ' class="0x060400"'])
def test_a_virtual_switch_without_a_class(machine, attributes):
    """NCCL cannot read it if the VM has no such device, and stops: the doctor reports it."""
    switch = f'<pci busid="ffff:ff:01.0"{attributes}><pci busid="{A}"/><pci busid="{N}"/></pci>'
    text = f'<system version="1"><cpu numaid="0">{switch}</cpu></system>'
    snapshot = on_machine(build_host(machine), text)
    assert snapshot.distance(A, N) == "PIX"
    refused = [one for one in diagnose(snapshot) if one.rule == "topology_file_refused"]
    assert bool(refused) == (not attributes)
    for one in refused:
        assert "pci element ffff:ff:01.0 has no class" in one.evidence


def test_a_switch_of_another_machines_branch(machine):
    """NCCL drops branches that have none of its devices: nothing is needed of them."""
    add_gpu(machine, A)
    text = (
        f'<system version="1"><cpu numaid="0"><pci busid="{A}"/>'
        f'<pci busid="ffff:ff:01.0"><pci busid="{D}"/></pci></cpu></system>'
    )
    assert on_machine(machine, text).pcie.topology_file_state.status == "read"


def test_a_cpu_without_numaid(read_topology):
    """NCCL does not read that."""
    snapshot = read_topology(
        f'<system version="1"><cpu><pci busid="{A}" class="0x0302"/></cpu></system>'
    )
    assert snapshot.pcie.topology_file_state.status == "refused"
    assert "no numaid" in snapshot.pcie.topology_file_state.why
    assert isinstance(snapshot.pcie.trees[0].find(A).numa_node, Unknown)
    assert read_topology(snapshot.to_nccl_topology()).pcie.topology_file_state.status == "read"


@pytest.mark.parametrize("text", [azure_ndv4(), aws_p4d()])
def test_vendors_files_are_read_as_before(read_topology, text):
    """Nothing of a full file is unknown."""
    snapshot = read_topology(text)
    assert {one.status for name, one in snapshot.probes.items() if name != "host"} == {"ok"}
    assert "unknown kind" not in str(snapshot)


def test_many_devices_of_unknown_kind(read_topology):
    """As many as a file may have are shown within seconds."""
    leaves = "".join(f'<pci busid="0000:{n:02x}:00.0"/>' for n in range(256))
    snapshot = read_topology(f'<system version="1"><cpu numaid="0">{leaves}</cpu></system>')
    distances = [one.distance for one in snapshot.pcie.distances]
    assert len(distances) == 256 * 255 // 2
    assert set(distances) == {"PHB"}
    assert "224 more" in str(snapshot)
    assert diagnose(snapshot) == []


def test_a_machine_is_read_by_addresses_alone(tmp_path):
    """A path in place of an address is not followed out of sysfs."""
    machine = Machine(tmp_path)
    add_gpu(machine, A)
    text = (
        '<system version="1"><cpu numaid="/../../.."><nic><net name="x"/></nic></cpu>'
        f'<cpu numaid="0"><pci busid="{A}"/></cpu></system>'
    )
    snapshot = on_machine(machine, text)
    assert snapshot.pcie.tree(TOPOLOGY_FILE).find(A).kind == "gpu"
    assert {B, C}.isdisjoint(one.address for one in snapshot.pcie.trees[0].devices)
