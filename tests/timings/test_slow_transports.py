"""`explain` names transports that are slower than the VMs' hardware allows."""

from dataclasses import replace
from pathlib import Path

import pytest
from iterations import MS, both, store

import workbench as wb
from workbench.advisor import explain
from workbench.ranks import RankInfo
from workbench.wire import Flag
from workbench.wire.transport import Transport

EXAMPLES = Path(__file__).parents[2] / "notebooks" / "examples"
GLOO = Transport("Gloo", "TCP", ("ens192",))
SOCKETS = Transport("NCCL", "TCP", ("ens192",))
ROCE = Transport("NCCL", "RoCE", ("mlx5_0:1",), "all")


class Training:
    """A cluster of two VMs with an active RDMA port each, without its processes."""

    def __init__(self, *transports, vms=("vm1", "vm2"), **settings):
        rows = both(range(5), communication=20, exposed=18, flags=Flag.TRANSFERS_SEEN,
                    transfer_ns=12 * MS)  # fmt: skip
        self.timings = store(*rows)
        self.transports = dict.fromkeys(range(2), transports)
        self.ranks = [RankInfo(*one, 1, "0", "0", "", "ready", 1) for one in enumerate(vms)]
        snapshot = wb.Snapshot.load(EXAMPLES / "vm1.json")
        if settings:
            host = replace(snapshot.host, nccl_settings=settings)
            snapshot = replace(snapshot, host=host)
        self._snapshots = dict.fromkeys(vms, snapshot)

    def snapshot(self):
        return self._snapshots


def causes(*transports, **options):
    named = ("TCP where RDMA is active", "no GPUDirect RDMA")
    return [one for one in explain(Training(*transports, **options)) if one.name in named]


@pytest.mark.parametrize(
    ("transports", "evidence", "fix"),
    [
        ((GLOO,), "Gloo uses TCP over ens192, although mlx5_0:1 (Ethernet) is active", "with NCCL"),
        ((GLOO, SOCKETS), "NCCL uses TCP over ens192, although", "let the ranks use /dev/infini"),
    ],
)
def test_tcp_where_rdma_is_active(transports, evidence, fix):
    """The ranks, the device and the port are named; the saving is at most that of the transfer."""
    (found,) = causes(*transports)
    assert found.evidence.startswith("ranks 0-1: ")
    assert evidence in found.evidence
    assert fix in found.change
    assert (found.bound, found.saving_us) == (True, pytest.approx(12_000))


def test_the_setting_that_forbids_rdma_is_named():
    """It is the cause, so that nothing else needs to be checked."""
    (found,) = causes(SOCKETS, NCCL_IB_DISABLE="1")
    assert found.change == "remove NCCL_IB_DISABLE=1 from the environment of the ranks"


@pytest.mark.parametrize(("share", "says"), [("none", "none of the"), ("some", "only some of")])
def test_connections_without_gpudirect(share, says):
    """GPUDirect RDMA is missed only where NCCL's log has no or not only such connections."""
    (found,) = causes(GLOO, replace(ROCE, gpudirect=share))
    assert found.name == "no GPUDirect RDMA"
    assert says in found.evidence
    assert "nvidia-peermem" in found.change


@pytest.mark.parametrize(
    ("transports", "options"),
    [
        ((GLOO, ROCE), {}),
        ((), {}),
        ((Transport("NCCL", "", unknown="not logged"),), {}),
        ((GLOO, Transport("NCCL", "", unknown="not logged")), {}),
        ((GLOO,), {"vms": ("vm1", "vm1")}),
    ],
    ids=["rdma", "not-reported", "unknown", "nccl-unknown", "one-vm"],
)
def test_what_is_not_slow_or_not_known(transports, options):
    """Nothing is said."""
    assert causes(*transports, **options) == []


def test_vms_without_rdma():
    """TCP is what the hardware allows."""
    training = Training(GLOO)
    for name, snapshot in training.snapshot().items():
        training.snapshot()[name] = replace(snapshot, nics=())
    assert [one for one in explain(training) if "TCP" in one.name] == []
