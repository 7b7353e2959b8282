"""Snapshots of GPUs: their NVLinks and peers."""

from __future__ import annotations

import dataclasses

import pytest
from fake_nvml import (
    FUNCTION_NOT_FOUND,
    LIB_RM_VERSION_MISMATCH,
    FakeNvml,
    Link,
    h100,
    mig_a100,
)
from nvml_machines import (
    GPU_NOT_SUPPORTED,
    a100,
    a100_guest,
    bridged_a100,
    hgx_a100,
    hgx_h100,
)

from workbench.resources import Unknown


def test_links_to_a_switch(look):
    """An A100 on an HGX board has 12 links of 25 GB/s each way, an H100 18 of them."""
    nvlink = look(hgx_a100()).gpus[0].nvlink
    assert len(nvlink.links) == 12
    assert dataclasses.astuple(nvlink.links[11]) == (11, "up", "3.0", "switch", "0000:cf:00.0", 25)
    assert nvlink.nominal_gb_per_s == 300
    assert look(hgx_h100()).gpus[7].nvlink.nominal_gb_per_s == 450


def test_fabric(look):
    """An H100 registers with the switches' fabric; an A100 has no such thing."""
    assert dataclasses.astuple(look(hgx_h100()).gpus[0].nvlink.fabric) == ("completed", "success")
    assert isinstance(look(hgx_a100()).gpus[0].nvlink.fabric, Unknown)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ((2, 0), "in progress", "has not ended"),
        ((3, 4), "completed", "needs root"),
        ((3, 77), "completed", "NVML's error 77"),
    ],
)
def test_fabric_that_is_not_there(look, answer, state, words):
    """A registration in progress, or one that failed, is reported as such."""
    (gpu,) = look(FakeNvml(h100(fabric=answer))).gpus
    assert gpu.nvlink.fabric.state == state
    assert words in str(gpu.nvlink.fabric.status)


def test_fabric_of_an_older_driver(look):
    """A driver without the versioned call is asked by the plain one."""
    nvml = hgx_h100()
    nvml.refused["nvmlDeviceGetGpuFabricInfoV"] = FUNCTION_NOT_FOUND
    assert look(nvml).gpus[0].nvlink.fabric.status == "success"


def test_links_to_another_gpu(look):
    """Bridged cards name each other by address; between the pairs there is only PCIe."""
    snapshot = look(bridged_a100())
    assert {link.peer_pci_address for link in snapshot.gpus[0].nvlink.links} == {"0000:65:00.0"}
    assert snapshot.gpus[1].pci_address == "0000:65:00.0"
    by_nvlink = {(p.first, p.second): p.p2p_nvlink for p in snapshot.gpu_pairs}
    assert [pair for pair, status in by_nvlink.items() if status == "ok"] == [(0, 1), (2, 3)]
    assert by_nvlink[1, 2] == "not supported"


def test_link_that_is_down(look):
    """A link that is down has no peer, and its rate is not counted."""
    links = (Link(), Link(up=False), Link())
    nvlink = look(FakeNvml(a100(0, "00000000:06:00.0", links=links))).gpus[0].nvlink
    assert [link.state for link in nvlink.links] == ["up", "down", "up"]
    assert nvlink.links[1].peer == Unknown("the link is down")
    assert nvlink.nominal_gb_per_s == 50


def test_peer_without_an_address(look):
    """A peer whose address the driver leaves empty is unknown; the rest of the link is there."""
    (link,) = look(FakeNvml(h100(links=(Link(peer=""),)))).gpus[0].nvlink.links
    assert (link.state, link.peer) == ("up", "switch")
    assert "''" in link.peer_pci_address.reason


def test_version_without_a_rate(look):
    """Of a version whose rate is not published here, no rate is guessed."""
    nvlink = look(FakeNvml(h100(links=(Link(version=8),)))).gpus[0].nvlink
    assert nvlink.links[0].version == "6.0"
    assert "no published rate" in nvlink.nominal_gb_per_s.reason


# Pairs


def test_pairs_of_a_board(look):
    """Eight GPUs make 28 pairs; those of one NUMA node are nearer than the rest."""
    pairs = look(hgx_a100()).gpu_pairs
    assert len(pairs) == 28
    assert [(p.first, p.second) for p in pairs if p.topology == "NODE"] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]
    assert {(p.p2p_read, p.p2p_write, p.p2p_nvlink) for p in pairs} == {("ok", "ok", "ok")}


def test_the_driver_is_a_source_of_distances(look):
    """NVML's values for two GPUs are listed with those of sysfs and topology files."""
    snapshot = look(hgx_a100())
    first, *_, last = snapshot.gpus
    said = snapshot.pcie.between(first.pci_address, last.pci_address)
    assert [(one.distance, one.source) for one in said] == [("SYS", "nvml")]


def test_why_there_is_no_peer_to_peer(look):
    """If NVML gives a reason against peer-to-peer, it is shown in words."""
    (pair,) = look(a100_guest("A100-4C", 4, count=2, p2p=GPU_NOT_SUPPORTED)).gpu_pairs
    assert pair.p2p_write == "not supported by the GPU"
    (pair,) = look(a100_guest("A100-4C", 4, count=2, p2p=6)).gpu_pairs
    assert isinstance(pair.p2p_write, Unknown)


def test_no_gpus_no_pairs(look):
    """Without GPUs there is nothing between them, and it says why."""
    assert look(FakeNvml()).gpu_pairs == ()
    broken = look(FakeNvml(init_error=LIB_RM_VERSION_MISMATCH))
    assert "differ in version" in broken.gpu_pairs.reason


def test_gpu_cut_by_mig_counts_once(look):
    """Two MIG devices of one GPU are no pair."""
    pairs = look(FakeNvml(mig_a100(), h100())).gpu_pairs
    assert [(p.first, p.second) for p in pairs] == [(0, 1)]
