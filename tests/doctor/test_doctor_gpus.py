"""Rules on the GPUs' own state and their NVLinks, each with a good and a bad machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_machine import snap
from fake_nvml import LIB_RM_VERSION_MISMATCH, FakeNvml, Link, h100, mig_a100
from nvml_machines import (
    H100_STATE,
    IDLE,
    NOT_SUPPORTED,
    a100_guest,
    bridged_a100,
    hgx_a100,
    hgx_h100,
    v100d_8c_guest,
)

from workbench.doctor import describe, diagnose
from workbench.resources import UNLIMITED, Unknown

POWER_CAP, SLOWDOWN, HOT, BRAKE = 0x4, 0x8, 0x40, 0x80


def seen(machine, nvml):
    snapshot = snap(machine, nvml)
    host = replace(snapshot.host, shm_bytes=8 << 30, memlock_bytes=UNLIMITED)
    return replace(snapshot, host=host)


def found(machine, nvml, rule):
    return [one for one in diagnose(seen(machine, nvml)) if one.rule == rule]


def changed(nvml, index=0, **changes):
    """The same machine with one GPU that differs."""
    nvml.devices[index] = replace(nvml.devices[index], **changes)
    return nvml


@pytest.mark.parametrize("build", [hgx_a100, hgx_h100])
def test_good_boards(machine, build):
    """Eight idle GPUs of an HGX board have no findings."""
    assert diagnose(seen(machine, build())) == []


def test_good_guest(machine):
    """Two full vGPUs with a licence and peer-to-peer have no findings."""
    assert diagnose(seen(machine, a100_guest("A100-40C", 40, 2))) == []


# probe_failed


@pytest.mark.parametrize(
    "why", ["did not answer within 0.5 s", "has not returned from an earlier call"]
)
def test_driver_that_answers_in_part(machine, why):
    """A call that hangs is reported, though the GPUs are listed."""
    snapshot = seen(machine, hgx_h100())
    gpus = tuple(replace(gpu, nvlink=Unknown(f"NVML {why}")) for gpu in snapshot.gpus)
    (finding,) = diagnose(replace(snapshot, gpus=gpus))
    assert (finding.rule, finding.severity) == ("probe_failed", "warning")
    assert (finding.subject, finding.evidence) == ("the GPUs", f"only partly known: NVML {why}")


def test_driver_that_does_not_answer_at_all(machine):
    """It is reported once."""
    snapshot = snap(machine, FakeNvml(init_error=LIB_RM_VERSION_MISMATCH))
    silent = replace(snapshot, gpu_pairs=Unknown("NVML did not answer within 2 s"))
    assert [one.rule for one in diagnose(silent)] == ["probe_failed"]


# gpu_lost


def test_lost_gpu(machine):
    """A GPU that fell off the bus is an error, and only that one is named."""
    (finding,) = diagnose(seen(machine, changed(hgx_h100(), 3, lost=True)))
    assert (finding.rule, finding.severity, finding.subject) == ("gpu_lost", "error", "GPU 3")
    assert "Restart the VM" in finding.fix


def test_gpu_that_needs_a_reset(machine):
    """Its fix differs from that of a lost one, even if only some calls are refused."""
    nvml = hgx_h100()
    nvml.refused["nvmlDeviceGetMemoryInfo"] = 16
    (finding,) = found(machine, nvml, "gpu_lost")
    assert (finding.subject, finding.evidence) == ("GPUs 0-7", "the GPU needs a reset")
    assert "--gpu-reset" in finding.fix


# mig_without_p2p


def test_several_mig_devices(machine):
    """Two MIG devices cannot train together by NCCL; a single one has no finding."""
    gpu = mig_a100()
    (finding,) = found(machine, FakeNvml(gpu), "mig_without_p2p")
    assert (finding.severity, finding.subject) == ("warning", "GPU 0")
    assert "2 devices" in finding.evidence
    assert found(machine, FakeNvml(replace(gpu, mig=gpu.mig[:1])), "mig_without_p2p") == []


# mig_without_devices


def test_a_gpu_in_mig_mode_without_devices(machine):
    """CUDA finds nothing on it; one with devices, or not in MIG mode, is fine."""
    gpu = mig_a100()
    (finding,) = found(machine, FakeNvml(h100(), replace(gpu, mig=[])), "mig_without_devices")
    assert (finding.severity, finding.subject) == ("error", "GPU 1")
    assert found(machine, FakeNvml(h100(), gpu), "mig_without_devices") == []


def test_mig_devices_are_counted_as_such(machine):
    """Parts of a GPU are not called GPUs."""
    for devices, words in (
        ([mig_a100()], "2 MIG devices of 1 GPU, no NICs"),
        ([h100(), mig_a100()], "1 GPU and 2 MIG devices of 1 GPU, no NICs"),
    ):
        assert f"({words})" in describe(seen(machine, FakeNvml(*devices)), [])


def test_gpus_that_could_not_be_counted(machine):
    """If the driver fails they are unknown, not none."""
    snapshot = seen(machine, FakeNvml(init_error=LIB_RM_VERSION_MISMATCH))
    assert "(GPUs unknown, no NICs)" in describe(snapshot, diagnose(snapshot))


def test_mig_devices_are_one_gpu(machine):
    """A finding about a GPU with several MIG devices is reported once."""
    gpu = replace(mig_a100(), persistence=0)
    (finding,) = found(machine, FakeNvml(gpu), "persistence_mode_off")
    assert finding.subject == "GPU 0"


def test_the_same_of_many_gpus_is_one_finding(machine):
    """Seven GPUs of eight are named by their ranges."""
    nvml = hgx_h100()
    for index in (0, 1, 2, 3, 5, 6, 7):
        changed(nvml, index, persistence=0)
    (finding,) = found(machine, nvml, "persistence_mode_off")
    assert finding.subject == "GPUs 0-3, 5-7"


# vgpu_unlicensed


def test_unlicensed(machine):
    """Two vGPUs that say they have no licence are one warning; V100D-8C of the capture has one."""
    (finding,) = found(machine, a100_guest("A100-40C", 40, 2, licensed=False), "vgpu_unlicensed")
    assert (finding.subject, finding.severity) == ("GPUs 0-1", "warning")
    assert finding.evidence.startswith("profile A100-40C runs without a licence")
    assert "nvidia-gridd" in finding.fix
    assert found(machine, v100d_8c_guest(), "vgpu_unlicensed") == []


# nvlink_down


def test_link_down(machine):
    """A GPU with links down, where others are up, is named with their numbers."""
    links = tuple(Link(up=number not in (4, 7)) for number in range(12))
    (finding,) = found(machine, changed(hgx_a100(), 3, links=links), "nvlink_down")
    assert (finding.subject, finding.severity) == ("GPU 3", "warning")
    assert finding.evidence == "NVLinks that are down: 4, 7 (2 of 12)"


def test_cards_without_bridges(machine):
    """Links that are down on every GPU are for a bridge: no fault."""
    links = tuple(Link(up=False) for _ in range(12))
    nvml = hgx_a100()
    for index in range(8):
        changed(nvml, index, links=links, name="NVIDIA A100-PCIE-40GB")
    assert diagnose(seen(machine, nvml)) == []


# nvlink_fewer_than_model


def test_fewer_links_than_the_model_has(machine):
    """An H100 SXM that lists 16 links lacks two; a card with a name like it may have any."""
    links = tuple(Link(version=6) for _ in range(16))
    nvml = changed(hgx_h100(), 2, links=links)
    (finding,) = found(machine, nvml, "nvlink_fewer_than_model")
    assert finding.subject == "GPU 2"
    assert finding.evidence == "16 NVLinks, where NVIDIA H100 80GB HBM3 has 18"
    card = changed(nvml, 2, name="NVIDIA H100 PCIe")
    assert found(machine, card, "nvlink_fewer_than_model") == []


# bridged_pairs


def test_bridged_pairs(machine):
    """Four cards with bridges in pairs: good to know, with the pairs; one pair is no finding."""
    (finding,) = diagnose(seen(machine, bridged_a100()))
    assert (finding.rule, finding.severity) == ("bridged_pairs", "info")
    assert "the pairs 0-1, 2-3" in finding.evidence
    assert "CUDA_VISIBLE_DEVICES=0,1" in finding.fix
    pair = FakeNvml(*bridged_a100().devices[:2])
    assert diagnose(seen(machine, pair)) == []


# fabric_not_ready


@pytest.mark.parametrize(
    ("fabric", "evidence"),
    [((1, 0), "not started"), ((2, 0), "in progress"), ((3, 999), "ended with")],
)
def test_fabric_not_ready(machine, fabric, evidence):
    """A GPU that has not joined the NVSwitches' fabric is an error."""
    (finding,) = found(machine, changed(hgx_h100(), 5, fabric=fabric), "fabric_not_ready")
    assert (finding.subject, finding.severity) == ("GPU 5", "error")
    assert evidence in finding.evidence


# ecc_errors


def test_uncorrected_errors(machine):
    """Uncorrected errors and a pending remapping are one warning with the number."""
    nvml = changed(hgx_h100(), 1, uncorrected=(3, 3), remapped=(0, 1, 1, 0))
    (finding,) = found(machine, nvml, "ecc_errors")
    assert (finding.subject, finding.severity) == ("GPU 1", "warning")
    assert "since the driver was loaded: 3; the remapping" in finding.evidence
    assert "--gpu-reset" in finding.fix


def test_remapping_failed(machine):
    """A row that could not be remapped is an error: the GPU is to be replaced."""
    nvml = changed(hgx_h100(), 1, uncorrected=(1, 1), remapped=(0, 8, 0, 1))
    (finding,) = found(machine, nvml, "ecc_errors")
    assert finding.severity == "error"
    assert "RMA" in finding.fix


def test_errors_of_the_past(machine):
    """Earlier errors, whose rows were remapped, are no finding."""
    nvml = changed(hgx_h100(), 1, uncorrected=(0, 9), remapped=(2, 3, 0, 0))
    assert diagnose(seen(machine, nvml)) == []


# throttled


@pytest.mark.parametrize(
    ("held", "severity", "evidence"),
    [
        (SLOWDOWN | HOT, "warning", "hardware slowdown, thermal (hardware)"),
        (POWER_CAP | BRAKE, "warning", "power cap, power brake"),
        (POWER_CAP, "info", "power cap"),
    ],
)
def test_throttled(machine, held, severity, evidence):
    """Heat and power brakes are a warning, the power cap alone is good to know."""
    (finding,) = found(machine, changed(hgx_h100(), 0, held=held), "throttled")
    assert finding.severity == severity
    assert finding.evidence == f"clocks are held down by: {evidence}"


@pytest.mark.parametrize("held", [0, IDLE, 0x2, None])
def test_not_throttled(machine, held):
    """Idle GPUs, and GPUs with chosen or unknown clocks, have no finding."""
    assert found(machine, changed(hgx_h100(), 0, held=held), "throttled") == []


# pcie_link_reduced


def test_fewer_lanes(machine):
    """Eight lanes of sixteen are a warning, at work or not."""
    (finding,) = found(machine, changed(hgx_h100(), 0, pcie=(5, 8)), "pcie_link_reduced")
    assert (finding.severity, finding.evidence) == ("warning", "PCIe link at x8 of x16")


def test_generation_at_rest_and_at_work(machine):
    """An idle GPU may lower its generation; one at work at full clock may not."""
    idle = changed(hgx_h100(), 0, pcie=(1, 16))
    assert found(machine, idle, "pcie_link_reduced") == []
    busy = changed(idle, 0, held=0, sm_mhz=(1980, 1980))
    (finding,) = found(machine, busy, "pcie_link_reduced")
    assert finding.evidence == "PCIe link at generation 1 of 5"


# persistence_mode_off


def test_persistence_mode_off(machine):
    """A driver that discards the state of an unused GPU is good to know."""
    (finding,) = diagnose(seen(machine, FakeNvml(h100(**{**H100_STATE, "persistence": 0}))))
    assert (finding.rule, finding.severity) == ("persistence_mode_off", "info")


# compute_mode


@pytest.mark.parametrize(
    ("mode", "severity", "evidence"),
    [(3, "info", "exclusive process"), (2, "error", "prohibited")],
)
def test_compute_mode(machine, mode, severity, evidence):
    """A GPU for no process is an error, one for a single process good to know."""
    (finding,) = found(machine, changed(hgx_h100(), 4, compute_mode=mode), "compute_mode")
    assert (finding.subject, finding.severity) == ("GPU 4", severity)
    assert finding.evidence == f"compute mode is {evidence}"
    assert "-c DEFAULT" in finding.fix


# unified_memory_on, p2p_refused


def test_vgpus_with_unified_memory(machine):
    """Full A100 vGPUs with PIX and no peer-to-peer suggest unified memory."""
    nvml = a100_guest("A100-40C", 40, 2, p2p=NOT_SUPPORTED)
    (finding,) = diagnose(seen(machine, nvml))
    assert (finding.rule, finding.subject) == ("unified_memory_on", "GPUs 0-1")
    assert "the guest cannot read that switch" in finding.evidence
    assert "enable_uvm = 0" in finding.fix
    assert found(machine, a100_guest("A100-40C", 40, 2), "unified_memory_on") == []


def test_vgpus_without_peer_to_peer(machine):
    """On boards that keep NVLink with unified memory, the fix names device groups."""
    nvml = a100_guest("H100XM-80C", 80, 2, p2p=NOT_SUPPORTED)
    (finding,) = found(machine, nvml, "p2p_refused")
    assert finding.subject == "GPUs 0-1"
    assert "not supported" in finding.evidence
    assert "device group" in finding.fix
    assert found(machine, nvml, "unified_memory_on") == []


def test_fractional_vgpus_may_not(machine):
    """If the profile rules it out, only the rule about profiles reports it."""
    nvml = a100_guest("A100-20C", 20, 2, p2p=NOT_SUPPORTED)
    assert [one.rule for one in diagnose(seen(machine, nvml))] == ["vgpu_without_p2p"]


def test_switched_gpus_without_peer_to_peer(machine):
    """GPUs with links to NVSwitches should reach one another; 28 pairs are one finding."""
    nvml = hgx_a100()
    for between in nvml.between.values():
        between.nvlink = NOT_SUPPORTED
    (finding,) = found(machine, nvml, "p2p_refused")
    assert finding.subject.startswith("pairs of GPUs 0-1, 0-2")
    assert finding.subject.endswith("and 20 more")
    assert "fabricmanager" in finding.fix


def test_bridged_cards_without_peer_to_peer(machine):
    """A pair that a bridge joins should reach one another; pairs without one need not."""
    nvml = bridged_a100()
    nvml.between[2, 3].nvlink = NOT_SUPPORTED
    (finding,) = found(machine, nvml, "p2p_refused")
    assert finding.subject == "GPUs 2-3"


# All together


def test_a_bad_machine_reads_well(machine):
    """Each finding has its four parts, whatever is wrong, and the worst is first."""
    nvml = changed(hgx_h100(), 0, fabric=(1, 0), held=SLOWDOWN, persistence=0, pcie=(5, 4))
    snapshot = seen(machine, nvml)
    text = describe(snapshot, diagnose(snapshot))
    blocks = text.split("\n\n")[1:]
    assert [block.split()[0] for block in blocks] == ["ERROR", "WARNING", "WARNING", "INFO"]
    for block in blocks:
        labels = [line.split()[0] for line in block.splitlines()[1:] if line[2] != " "]
        assert labels == ["evidence", "why", "fix", "source"]
