"""Snapshots of GPUs: their state, what a vGPU permits, calls that fail, and the text."""

from __future__ import annotations

import dataclasses

import pytest
from fake_nvml import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    FakeNvml,
    Link,
    h100,
    mig_a100,
)
from nvml_machines import (
    a100,
    a100_guest,
    bridged_a100,
    hgx_a100,
    hgx_h100,
    mig_backed_guest,
    v100d_8c_guest,
)

from workbench.resources import Snapshot, Unknown
from workbench.resources.gpus.vgpu import decode_profile
from workbench.widgets.machine import resources_view

MACHINES = [
    hgx_a100,
    hgx_h100,
    bridged_a100,
    v100d_8c_guest,
    lambda: a100_guest("A100-40C", 40, count=2),
    lambda: a100_guest("A100-4C", 4, licensed=False),
    mig_backed_guest,
    lambda: FakeNvml(mig_a100(), h100()),
    FakeNvml,
    lambda: FakeNvml(init_error=LIB_RM_VERSION_MISMATCH),
    lambda: FakeNvml(h100(lost=True), h100()),
]


@pytest.mark.parametrize("build", MACHINES)
def test_every_machine_comes_back_from_json(look, build):
    """Known and unknown values survive the way through JSON; every reason is given."""
    snapshot = look(build())
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    text = snapshot.to_json()
    assert ": null" not in text
    assert '{"unknown": ""}' not in text
    assert "not read yet" not in text


# State


def test_state_of_a_gpu(look):
    """ECC, clocks with what limits them, the PCIe link and the modes, as NVML has them."""
    gpu = look(hgx_h100()).gpus[0]
    assert (gpu.ecc.enabled, gpu.ecc.volatile_uncorrected, gpu.ecc.remapping_failed) == (
        True,
        0,
        False,
    )
    assert (gpu.clocks.sm_mhz, gpu.clocks.sm_max_mhz, gpu.clocks.held_by) == (345, 1980, ("idle",))
    assert (gpu.clocks.memory_mhz, gpu.clocks.memory_max_mhz) == (2619, 2619)
    assert dataclasses.astuple(gpu.pcie_link) == (5, 5, 16, 16)
    assert (gpu.persistence_mode, gpu.compute_mode) == (True, "default")
    assert gpu.licence == Unknown("not a vGPU: it needs no licence")


def test_errors_and_what_limits_the_clocks(look):
    """Uncorrected errors are counted separately; every reason that limits the clocks is named."""
    device = a100(0, "00000000:06:00.0", uncorrected=(2, 5), remapped=(0, 1, 1, 0), held=0x44)
    (gpu,) = look(FakeNvml(device)).gpus
    assert (gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected) == (2, 5)
    assert (gpu.ecc.remapped_rows_uncorrected, gpu.ecc.remapping_pending) == (1, True)
    assert gpu.clocks.held_by == ("power cap", "thermal (hardware)")


def test_reason_without_a_name(look):
    """A bit that this workbench does not know is shown, not dropped."""
    (gpu,) = look(FakeNvml(a100(0, "00000000:06:00.0", held=0x1001))).gpus
    assert gpu.clocks.held_by == ("idle", "reason 0x1000")


def test_older_driver_names_the_reasons_otherwise(look):
    """A driver that lacks the newer call is asked by the older one."""
    nvml = FakeNvml(a100(0, "00000000:06:00.0"))
    nvml.refused["nvmlDeviceGetCurrentClocksEventReasons"] = FUNCTION_NOT_FOUND
    assert look(nvml).gpus[0].clocks.held_by == ("idle",)


@pytest.mark.parametrize(
    ("code", "words"),
    [(FUNCTION_NOT_FOUND, "too old"), (NO_PERMISSION, "root"), (GPU_IS_LOST, "lost")],
)
def test_refusal_carries_its_reason(look, code, words):
    """One call that is refused costs its own value, with the reason."""
    nvml = FakeNvml(a100(0, "00000000:06:00.0"))
    nvml.refused["nvmlDeviceGetTotalEccErrors"] = code
    ecc = look(nvml).gpus[0].ecc
    assert words in ecc.volatile_uncorrected.reason
    assert ecc.enabled is True


def test_mig_devices_have_the_state_of_their_gpu(look):
    """A MIG device shows the ECC of the GPU that it is cut from, and has no NVLink."""
    part = mig_a100()
    part.ecc = (1, 1)
    gpus = look(FakeNvml(part)).gpus
    assert [gpu.ecc.enabled for gpu in gpus] == [True, True]
    assert gpus[0].nvlink.links == Unknown("a MIG device has no NVLink")


def test_lost_gpu(look):
    """All values of a lost GPU have that as their reason, also between it and others."""
    machine = hgx_a100()
    machine.devices[3].lost = True
    snapshot = look(machine)
    lost = snapshot.gpus[3]
    for value in (lost.ecc.enabled, lost.clocks.sm_mhz, lost.nvlink.links, lost.nvlink.fabric):
        assert "lost" in value.reason
    unsure = [p for p in snapshot.gpu_pairs if isinstance(p.topology, Unknown)]
    assert {3} == set.intersection(*({p.first, p.second} for p in unsure))
    assert len(unsure) == 7


# vGPU


def test_full_vgpu(look):
    """A-40C on 40 GB is the full board: peers and GPUDirect are possible."""
    snapshot = look(a100_guest("A100-40C", 40, count=2))
    profile = snapshot.gpus[0].vgpu
    assert (profile.board, profile.series, profile.slices) == ("A100", "C", 0)
    assert (profile.memory_gb, profile.board_memory_gb) == (40, 40)
    assert (profile.whole_frame_buffer, profile.p2p, profile.gpudirect) == (True, True, True)
    (pair,) = snapshot.gpu_pairs
    assert (pair.topology, pair.p2p_read, pair.p2p_nvlink) == ("PIX", "ok", "ok")


def test_fraction(look):
    """A-4C is a tenth of the board: GPUDirect yes, peers no."""
    profile = look(a100_guest("A100-4C", 4)).gpus[0].vgpu
    assert (profile.whole_frame_buffer, profile.p2p, profile.gpudirect) == (False, False, True)


def test_mig_backed(look):
    """A MIG-backed vGPU is one device with its slices, and has no peers."""
    (gpu,) = look(mig_backed_guest()).gpus
    assert (gpu.form, gpu.vgpu.slices, gpu.vgpu.mig_backed) == ("vgpu", 3, True)
    assert (gpu.vgpu.p2p, gpu.vgpu.gpudirect) == (False, True)


@pytest.mark.parametrize(
    ("name", "whole", "p2p", "gpudirect"),
    [
        ("A100-7-40C", True, False, True),  # all the memory, and still MIG-backed
        ("A100-40Q", True, False, False),  # not of the compute series
        ("L40S-48C", True, False, True),  # a board without NVLink
        ("T4-16C", True, False, False),  # nor SR-IOV
        ("H100XM-80C", True, True, True),
        ("B200X-180C", True, True, True),
    ],
)
def test_what_a_profile_permits(name, whole, p2p, gpudirect):
    """The rules of NVIDIA's documents, at their edges."""
    profile = decode_profile(name)
    assert (profile.whole_frame_buffer, profile.p2p, profile.gpudirect) == (whole, p2p, gpudirect)


def test_names_without_information():
    """Of a board that is not listed nothing is claimed; Blackwell's names hide MIG."""
    profile = decode_profile("Z900-10C")
    for value in (profile.board_memory_gb, profile.p2p, profile.gpudirect):
        assert "board is not in NVIDIA's list" in value.reason
    assert isinstance(decode_profile("B200X-12C").slices, Unknown)


def test_licence(look):
    """The product and the day on which the licence ends; without one, so it says."""
    (gpu,) = look(v100d_8c_guest()).gpus
    assert dataclasses.astuple(gpu.licence) == (
        "licensed",
        "NVIDIA Virtual Compute Server",
        "2025-03-19 07:29:04",
    )
    (gpu,) = look(a100_guest("A100-4C", 4, licensed=False)).gpus
    assert (gpu.licence.state, type(gpu.licence.expires)) == ("unlicensed", Unknown)


def test_guest_reports_less(look):
    """Values that a guest's driver does not report have that reason; the rest is known."""
    (gpu,) = look(v100d_8c_guest()).gpus
    nothing = Unknown("not reported by the driver for this device")
    assert (gpu.clocks.sm_mhz, gpu.clocks.sm_max_mhz) == (1230, nothing)
    assert (gpu.clocks.held_by, gpu.pcie_link.generation) == (nothing, nothing)
    assert (gpu.ecc.retired_pages, gpu.ecc.remapping_pending) == (0, nothing)
    assert gpu.nvlink.links == nothing


# Calls that hang


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("nvmlDeviceGetEccMode", "state"),
        ("nvmlDeviceGetNvLinkState", "links"),
        ("nvmlDeviceGetP2PStatus", "pairs"),
    ],
)
def test_call_that_hangs_costs_its_part(look, call, part):
    """Whichever part hangs, the others and the list of GPUs are there, in time."""
    nvml = hgx_a100()
    nvml.hanging.add(call)
    try:
        snapshot = look(nvml, time_limit_s=3.0)
    finally:
        nvml.released.set()
    gpu = snapshot.gpus[0]
    parts = {"state": gpu.ecc, "links": gpu.nvlink, "pairs": snapshot.gpu_pairs}
    unknown = {name: value for name, value in parts.items() if isinstance(value, Unknown)}
    assert list(unknown) == [part]
    assert "did not answer within" in unknown[part].reason
    assert nvml.opened == 1  # a library that hangs is not asked to close
    assert snapshot.probes["gpus"].status == "ok"
    assert gpu.name == "NVIDIA A100-SXM4-40GB"


def test_part_that_fails_costs_only_itself(look):
    """An answer that nobody expected costs the part that asked, and says what it was."""
    snapshot = look(FakeNvml(a100(0, "00000000:06:00.0", held="hot", links=(Link(),))))
    (gpu,) = snapshot.gpus
    assert "bit_length" in gpu.clocks.reason
    assert gpu.nvlink.nominal_gb_per_s == 25
    assert snapshot.probes["gpus"].status == "ok"


# As text


@pytest.mark.parametrize(
    ("build", "lines"),
    [
        (
            hgx_a100,
            [
                "NVLink: 12 links of generation 3, all up, 300 GB/s each way, to the switch",
                "SM at 210 of 1410 MHz (idle), PCIe generation 4 x16, ECC on, no uncorrected err",
                "between GPUs 0-1, 2-3, 4-5, 6-7: NODE over PCIe; peer-to-peer ok; by NVLink ok",
                "between GPUs (24 pairs): SYS over PCIe",
            ],
        ),
        (hgx_h100, ["18 links of generation 4, all up, 450 GB/s each way, to the switch, fabric"]),
        (bridged_a100, ["300 GB/s each way, to 0000:65:00.0", "by NVLink not supported"]),
        (
            lambda: a100_guest("A100-40C", 40),
            [
                "A100-40C: 40 GB of 40 GB, whole frame buffer, P2P and GPUDirect possible, ",
                "licensed until 2025-03-19 07:29:04",
                "NVLink: unknown (not reported by the driver for this device)",
            ],
        ),
        (
            lambda: a100_guest("A100-4C", 4, licensed=False),
            ["4 GB of 40 GB, a fraction, GPUDirect possible, no P2P, unlicensed"],
        ),
        (
            v100d_8c_guest,
            ["8 GB, of a board that is not known here, P2P and GPUDirect unknown (the board"],
        ),
        (
            lambda: FakeNvml(h100(lost=True), h100()),
            [
                "  0  unknown (the GPU is lost: it fell off the bus, the VM must be restarted)\n",
                "between GPUs 0-1: unknown (the GPU is lost",
            ],
        ),
        (
            lambda: FakeNvml(init_error=LIB_RM_VERSION_MISMATCH),
            ["GPUs: unknown (the driver's library and kernel module differ in version"],
        ),
        (mig_backed_guest, ["20 GB of 40 GB, MIG-backed (3 slices), GPUDirect possible, no P2P"]),
    ],
)
def test_read_in_a_terminal(look, build, lines):
    """A line or two per GPU say what its profile, its links and its peers are."""
    text = str(look(build()))
    for line in lines:
        assert line in text


def test_read_in_a_notebook(look):
    """The table has a profile and the links in words; where there are none, the reason."""
    html = resources_view(look(hgx_a100()))._repr_html_()
    assert "12 links of generation 3, all up, 300 GB/s each way, to the switch" in html
    assert 'title="not a vGPU"' in html
    guest = resources_view(look(a100_guest("A100-4C", 4)))._repr_html_()
    assert "4 GB of 40 GB, a fraction, GPUDirect possible, no P2P" in guest
