"""Device groups, and what the devices of a VM on vSphere permit."""

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100, mig_a100
from nvml_machines import a100_guest, bridged_a100, hgx_a100, hgx_h100, mig_backed_guest

from workbench.doctor import diagnose
from workbench.resources import device_groups
from workbench.resources.gpus.profiles import board_memory_gb, smallest_shares
from workbench.resources.gpus.vgpu import BOARD_GB
from workbench.resources.vsphere import gpu_request


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (hgx_a100, [(tuple(range(8)), "NVSwitch")]),
        (hgx_h100, [(tuple(range(8)), "NVSwitch")]),
        (bridged_a100, [((0, 1), "NVLink bridge"), ((2, 3), "NVLink bridge")]),
        (lambda: a100_guest("A100-40C", 40, count=2), [((0, 1), "NVLink")]),
        (lambda: a100_guest("A100-20C", 20, count=2, p2p=1), []),
        (lambda: FakeNvml(mig_a100(), h100()), []),
        (FakeNvml, []),
    ],
)
def test_groups_of_gpus_that_nvlink_connects(machine, build, expected):
    """Each with each: bridges join pairs, switches all GPUs of a board."""
    found = device_groups(snap(machine, build()))
    assert [(group.gpus, group.connection) for group in found] == expected


def test_a_group_says_whether_vsphere_offers_its_size(machine):
    """Groups have 2, 4 or 8 GPUs."""
    (whole,) = device_groups(snap(machine, hgx_a100()))
    assert str(whole) == (
        "GPUs 0, 1, 2, 3, 4, 5, 6, 7: connected by NVSwitch; vSphere 8 offers a device group of "
        "8 GPUs"
    )
    nvml = a100_guest("A100-40C", 40, count=3)
    (three,) = device_groups(snap(machine, nvml))
    assert "offers no device group of 3 GPUs" in str(three)


def test_what_the_devices_permit(machine):
    """Only on vSphere."""
    assert "vSphere" not in str(snap(machine, mig_backed_guest()))
    machine.set_dmi("VMware, Inc.", "VMware20,1")
    text = str(snap(machine, mig_backed_guest()))
    assert "GPU 0: vGPU, so vMotion and suspend where ESXi" in text
    text = str(snap(machine, hgx_h100()))
    assert "GPUs 0, 1, 2, 3, 4, 5, 6, 7: connected by NVSwitch" in text


@pytest.mark.parametrize("board", BOARD_GB)
def test_every_board_has_a_share_as_large_as_itself(board):
    """And none that is larger; a little memory fits into a small one."""
    whole = board_memory_gb(board)
    found = smallest_shares(board, whole)
    assert f"{board}-{whole}C" in [one.name for one in found]
    assert all(one.memory_gb == whole for one in found)
    assert smallest_shares(board, whole + 1) == []


def test_the_smallest_slice_has_as_few_slices_as_possible():
    """MIG instances of one slice also have double memory."""
    names = [one.name for one in smallest_shares("H100XM", 15)]
    assert names == ["MIG 1g.20gb", "H100XM-1-20C"]  # its time-sliced profiles are not known here
    assert "H100XM-80C" in [one.name for one in smallest_shares("H100XM", 41)]


# limits


def add_nics(machine, count, driver):
    for place in range(count):
        device = machine.add_pci(f"0000:{place + 16:02x}:00.0", driver=driver)
        machine.add_interface(f"ens{place}", device=device)


@pytest.mark.parametrize(
    ("product", "driver", "count", "reached"),
    [
        ("VMware7,1", "mlx5_core", 16, "7.0 (16), 7.0 Update 2 (16)"),
        ("VMware7,1", "mlx5_core", 15, ""),
        ("VMware7,1", "mlx5_core", 20, ""),  # so many need 8.0
        ("VMware7,1", "mlx5_core", 32, "8.0 (32)"),
        ("VMware20,1", "mlx5_core", 16, ""),
        ("VMware20,1", "mlx5_core", 32, "8.0 (32)"),
        ("VMware7,1", "vmxnet3", 10, "7.0 (10), 7.0 Update 2 (10)"),
        ("VMware20,1", "vmxnet3", 10, ""),  # not known from 8.0 on
    ],
)
def test_devices_at_the_limit_of_a_release(machine, product, driver, count, reached):
    """Only of releases that neither the virtual hardware version nor the number excludes."""
    machine.set_dmi("VMware, Inc.", product)
    add_nics(machine, count, driver)
    taken = snap(machine)
    found = [one for one in diagnose(taken) if one.rule == "vsphere_limit"]
    assert [one.evidence.partition("limit of vSphere ")[2] for one in found] == [reached] * len(
        found
    )
    assert bool(found) == bool(reached)
    assert (f"no more are possible in vSphere {reached}" in str(taken)) == bool(reached)


def test_limits_are_those_of_vsphere_only(machine):
    machine.set_dmi("QEMU", "Standard PC")
    add_nics(machine, 16, "mlx5_core")
    assert "vsphere_limit" not in [one.rule for one in diagnose(snap(machine))]


@pytest.mark.parametrize(
    ("product", "words"),
    [
        ("VMware20,1", "at least 20"),
        ("VMware7,1", "unknown (the product name VMware7,1 does not show it)"),
        ("VMware Virtual Platform", "unknown (the product name VMware Virtual Platform does not"),
    ],
)
def test_the_virtual_hardware_version(machine, product, words):
    """DMI shows a lower limit, or nothing."""
    machine.set_dmi("VMware, Inc.", product)
    assert f"virtual hardware version: {words}" in str(snap(machine))


def test_more_gpus_than_vgpus_are_asked_for_with_their_limits():
    request = gpu_request("A100", 16)
    assert "16 in vSphere 7, 32 from 8.0 on, 64 from 8.0 Update 1 on, 128 from 8.0" in request
    assert "All memory of the VM is reserved" in request
