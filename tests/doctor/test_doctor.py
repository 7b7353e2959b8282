"""Each rule, with a good and a bad snapshot."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import fake_machine
import pytest
from fake_machine import roce_gids
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, h100, vgpu

import workbench
import workbench.doctor
from workbench.cli import main
from workbench.doctor import diagnose
from workbench.doctor.rule import Rule
from workbench.doctor.rules import ACROSS, LIMITS, LIVE, RULES
from workbench.resources import UNLIMITED, Snapshot, Unknown, take_snapshot
from workbench.resources.gpus.vgpu import decode_profile


def with_good_limits(snapshot, **host):
    """The same VM with good limits, whatever this machine's are."""
    values = {
        "shm_bytes": 8 << 30,
        "memlock_bytes": UNLIMITED,
        "open_files": 65536,
        "usable_numa_nodes": (0, 1),
        **host,
    }
    return replace(snapshot, host=replace(snapshot.host, **values))


def snap(machine, nvml=None, **host):
    return with_good_limits(fake_machine.snap(machine, nvml or FakeNvml(h100())), **host)


def rules(snapshot):
    return [finding.rule for finding in diagnose(snapshot)]


def only(snapshot):
    (finding,) = diagnose(snapshot)
    return finding


def add_roce(machine, number=0, mtu=9000, **port):
    pci = machine.add_pci(f"0000:3b:00.{number}")
    machine.add_interface(f"ens{number}", device=pci, mtu=mtu)
    values = {"link_layer": "Ethernet", "gids": roce_gids(f"ens{number}")}
    machine.add_rdma(f"mlx5_{number}", device=pci, **{**values, **port})


def test_a_machine_that_is_set_up_right(machine):
    """A VM with a full GPU and two fast RDMA ports has no findings."""
    add_roce(machine, 0)
    add_roce(machine, 1)
    machine.add_rdma("mlx5_5", device=machine.add_pci("0000:1a:00.0"))
    assert diagnose(snap(machine)) == []


def test_unknown_is_never_wrong(tmp_path):
    """If nothing can be read, no rule finds anything wrong."""
    nothing = tmp_path / "no"
    snapshot = take_snapshot(sysfs=nothing, procfs=nothing, devfs=nothing, nvml=FakeNvml())
    unread = dict.fromkeys(
        ("shm_bytes", "memlock_bytes", "open_files", "usable_numa_nodes"), Unknown("x")
    )
    empty = with_good_limits(snapshot, **unread)
    assert diagnose(empty) == []


def test_any_real_machine_can_be_diagnosed():
    """Every finding about the machine that runs this is complete."""
    for finding in workbench.diagnose(workbench.take_snapshot()):
        assert all((finding.subject, finding.evidence, finding.why, finding.fix, finding.source))


def test_findings_survive_the_file(machine):
    """A snapshot from a file gives the findings of the VM itself."""
    add_roce(machine, mtu=1500, state="1: DOWN")
    snapshot = snap(machine, FakeNvml(vgpu(), vgpu()), memlock_bytes=65536)
    loaded = Snapshot.from_json(snapshot.to_json())
    assert diagnose(loaded) == diagnose(snapshot)
    assert len(diagnose(loaded)) >= 4


def test_worst_first(machine):
    """Errors come before warnings, and warnings before what is good to know."""
    add_roce(machine, mtu=1500, state="1: DOWN")
    found = diagnose(snap(machine, FakeNvml(vgpu())))
    assert [finding.severity for finding in found] == ["error", "warning", "info"]


def test_every_rule_is_named_after_its_check():
    """A finding contains the name of its rule, by which the check can be found."""
    for rules in (RULES, LIVE):
        assert len({rule.name for rule in rules}) == len(rules)
        for rule in rules:
            assert rule.name == rule.check.__name__
            assert rule.check.__module__.startswith("workbench.doctor.")


def test_every_rule_is_run():
    """A rule that is written and not listed in a table would never find anything."""
    written = [
        value
        for module in pkgutil.iter_modules(workbench.doctor.__path__, "workbench.doctor.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Rule)
    ]
    listed = (*RULES, *LIVE, *ACROSS)
    assert len(written) >= len(RULES)
    assert [rule.name for rule in written if rule not in listed] == []
    assert set(LIMITS) < set(RULES)


# The command line


def test_command_line_reads_a_file(machine, tmp_path, capsys):
    """`workbench doctor --file` diagnoses the VM of the file; exit status 1 means an error."""
    add_roce(machine, mtu=1500)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(snap(machine).to_json())
    bad.write_text(snap(machine, shm_bytes=64 << 20).to_json())
    assert main(["doctor", "--file", str(good)]) == 0
    assert capsys.readouterr().out.startswith(
        "vm-17 (1 GPU, 1 NIC): 1 warning.\n\nWARNING  ens0\n  evidence  MTU 1500"
    )
    assert main(["doctor", "--file", str(bad)]) == 1
    assert "ERROR  this VM\n  evidence  the shared memory" in capsys.readouterr().out


def test_command_line_without_findings(machine, tmp_path, capsys):
    """If nothing is wrong, one line says that, and how many rules were checked."""
    file = tmp_path / "vm.json"
    file.write_text(snap(machine).to_json())
    assert main(["doctor", "--file", str(file)]) == 0
    assert f"none of {len(RULES)} rules found anything" in capsys.readouterr().out


# probe_failed


def test_probe_failed(machine):
    """A driver that does not answer is reported with its reason; an absent one is not."""
    finding = only(snap(machine, FakeNvml(init_error=18)))
    assert (finding.rule, finding.subject) == ("probe_failed", "the GPUs")
    assert "differ in version" in finding.evidence
    assert "nvidia-smi" in finding.fix
    assert rules(snap(machine, FakeNvml(init_error=DRIVER_NOT_LOADED))) == []


# driver_not_loaded


def test_gpu_without_driver(machine):
    """An NVIDIA display device on the bus without a driver is an error."""
    machine.add_pci("0000:02:00.0", vendor="0x10de", pci_class="0x030200")
    finding = only(snap(machine, FakeNvml(init_error=DRIVER_NOT_LOADED)))
    assert (finding.rule, finding.severity) == ("driver_not_loaded", "error")
    assert "0000:02:00.0" in finding.evidence
    assert rules(snap(machine, FakeNvml(h100()))) == []


def test_nvidia_device_that_is_no_gpu(machine):
    """An NVSwitch or an audio function is not a GPU without its driver."""
    machine.add_pci("0000:02:00.1", vendor="0x10de", pci_class="0x040300")
    machine.add_pci("0000:05:00.0", vendor="0x10de", pci_class="0x068000")
    assert rules(snap(machine, FakeNvml(init_error=DRIVER_NOT_LOADED))) == []


# vgpu_without_p2p


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("GRID A100-4C", "4 GB of the board's 40 GB"),
        ("NVIDIA A100-7-40C", "MIG instance of 7 slices"),
        ("NVIDIA A100X-40Q", "series Q"),
    ],
)
def test_vgpus_without_p2p(machine, name, evidence):
    """Two vGPUs that are fractional, MIG-backed or of another series have no NVLink."""
    finding = only(snap(machine, FakeNvml(vgpu(name), vgpu(name))))
    assert (finding.rule, finding.severity) == ("vgpu_without_p2p", "warning")
    assert finding.subject == "GPUs 0-1"
    assert evidence in finding.evidence
    assert "-40C" in finding.fix


def test_single_fractional_vgpu(machine):
    """A single one is only good to know."""
    assert only(snap(machine, FakeNvml(vgpu()))).severity == "info"


@pytest.mark.parametrize("name", ["GRID A100-40C", "NVIDIA H100XM-80C", "NVIDIA A100DX-80C"])
def test_full_vgpus(machine, name):
    """Time-sliced C-series vGPUs with the complete frame buffer have no findings."""
    assert rules(snap(machine, FakeNvml(vgpu(name), vgpu(name)))) == []


def test_vgpu_of_an_unknown_board(machine):
    """A board that is not in the list gives no finding."""
    assert rules(snap(machine, FakeNvml(vgpu("NVIDIA Z900-10C"), vgpu("NVIDIA Z900-10C")))) == []


def test_decoding_a_profile():
    """The name gives board, slices, frame buffer and series; the A100X of the names is HGX."""
    profile = decode_profile("NVIDIA A100-4-20C")
    assert (profile.board, profile.slices, profile.memory_gb, profile.series) == (
        "A100",
        4,
        20,
        "C",
    )
    assert decode_profile("GRID A100X-40C").whole_frame_buffer is True
    assert decode_profile("A100-1-5CME").mig_backed
    assert decode_profile("NVIDIA H100 80GB HBM3") is None


# rdma_port_not_active


def test_port_down(machine):
    """A port that is down is an error with the command for its interface."""
    add_roce(machine, state="1: DOWN")
    finding = only(snap(machine))
    assert (finding.rule, finding.subject) == ("rdma_port_not_active", "mlx5_0")
    assert "ip link set dev ens0 up" in finding.fix


def test_port_without_subnet_manager(machine):
    """An InfiniBand port in INIT has a link but no subnet manager: another fix."""
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:1a:00.0"), state="2: INIT")
    assert "subnet manager" in only(snap(machine)).fix


# rdma_port_slow


def test_port_slower_than_an_equal_one(machine):
    """Of two ports of one model the slower one is named, with both rates."""
    add_roce(machine, 0)
    add_roce(machine, 1, rate="100 Gb/sec (4X EDR)")
    finding = only(snap(machine))
    assert (finding.rule, finding.subject) == ("rdma_port_slow", "mlx5_1")
    assert "100 Gb/s" in finding.evidence
    assert "400 Gb/s" in finding.evidence


def test_ports_of_other_models_may_differ(machine):
    """A 200 Gb/s storage adapter next to 400 Gb/s ports is no fault."""
    add_roce(machine, 0)
    add_roce(machine, 1, hca_type="MT41692", rate="200 Gb/sec (2X NDR)")
    assert rules(snap(machine)) == []


# roce_mtu


def test_roce_with_the_default_mtu(machine):
    """An MTU of 1500 on RoCE is a warning with the command that raises it."""
    add_roce(machine, mtu=1500)
    finding = only(snap(machine))
    assert (finding.rule, finding.subject) == ("roce_mtu", "ens0")
    assert "ip link set dev ens0 mtu 9000" in finding.fix


def test_mtu_elsewhere(machine):
    """A plain NIC with 1500 is no fault."""
    machine.add_interface("eth0", device=machine.add_pci("0000:00:03.0"), mtu=1500)
    assert rules(snap(machine)) == []


# memlock_limit


def test_memlock_with_rdma(machine):
    """A limit on locked memory is an error with RDMA, and no finding without."""
    assert rules(snap(machine, memlock_bytes=8 << 20)) == []
    add_roce(machine)
    finding = only(snap(machine, memlock_bytes=8 << 20))
    assert (finding.rule, finding.severity) == ("memlock_limit", "error")
    assert "8 MiB" in finding.evidence


# shm_size


@pytest.mark.parametrize(("size", "severity"), [(64 << 20, "error"), (512 << 20, "warning")])
def test_small_shared_memory(machine, size, severity):
    """A container's 64 MiB is an error, less than 1 GiB a warning."""
    finding = only(snap(machine, shm_bytes=size))
    assert (finding.rule, finding.severity) == ("shm_size", severity)
    assert "--shm-size" in finding.fix


def test_a_finding_reads_well(machine):
    """As text it has the evidence first, then why and the fix."""
    lines = str(only(snap(machine, shm_bytes=64 << 20))).splitlines()
    assert lines[0] == "ERROR  this VM"
    assert lines[1] == "  evidence  the shared memory of /dev/shm holds 64 MiB"
    labels = [line.split()[0] for line in lines if line[2] != " "]
    assert labels == ["ERROR", "evidence", "why", "fix", "source"]
