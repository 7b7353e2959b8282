"""Differences between the RDMA ports that NCCL uses on several VMs."""

from __future__ import annotations

import fake_machine
import pytest
from fake_machine import Machine

from workbench.doctor import diagnose_all
from workbench.resources import NcclSettings, Snapshot

EIGHT = [f"mlx5_{number}" for number in range(8)]


@pytest.fixture
def vm(tmp_path):
    """A VM with RDMA devices of these names: rates and layers by name, and NCCL's settings."""
    made = []

    def vm(*names, rates=None, ethernet=(), down=(), nodes=None, **settings):
        machine = Machine(tmp_path / str(len(made)))
        for number, name in enumerate(names):
            machine.add_rdma(
                name,
                device=machine.add_pci(f"0000:{0x20 + number:02x}:00.0"),
                rate=f"{(rates or {}).get(name, 400)} Gb/sec (4X NDR)",
                link_layer="Ethernet" if name in ethernet else "InfiniBand",
                state="1: DOWN" if name in down else "4: ACTIVE",
            )
        for number in range(len(names) if nodes is None else nodes, len(names)):
            (machine.devfs / f"infiniband/uverbs{number}").unlink()
        made.append(machine)
        return fake_machine.snap(machine, nccl=NcclSettings(settings, machine.sysfs.parent))

    return vm


def found(*snapshots, rule="nic_sets_unlike"):
    named = {f"vm{number}": one for number, one in enumerate(snapshots, 1)}
    findings = [one for one in diagnose_all(named) if one.rule == rule]
    sent = {name: Snapshot.from_json(one.to_json()) for name, one in named.items()}
    assert [one for one in diagnose_all(sent) if one.rule == rule] == findings
    return findings


def test_equal_sets(vm):
    """Nothing is found: eight ports each, one of another name each, none at all."""
    assert found(*(vm(*EIGHT) for _ in range(3))) == []
    assert found(vm("mlx5_0"), vm("mlx5_7"), vm("rocep1s0f0")) == []
    assert found(vm(), vm(), vm()) == []
    assert found(vm(*EIGHT, down=["mlx5_3"]), vm(*EIGHT, down=["mlx5_3"])) == []


def test_as_many_of_other_names(vm):
    """Four ports on each of two hosts, at other places (NVIDIA/nccl#1277)."""
    (finding,) = found(
        vm("mlx5_0", "mlx5_3", "mlx5_5", "mlx5_8"), vm("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5")
    )
    assert (finding.severity, finding.subject) == ("warning", "vm1, vm2")
    assert "vm1 has 4 RDMA ports for NCCL (mlx5_0, mlx5_3, mlx5_5, mlx5_8)" in finding.evidence
    assert "vm2 has 4 RDMA ports for NCCL (mlx5_0, mlx5_1, mlx5_4, mlx5_5)" in finding.evidence
    assert "issues 1277" in finding.source
    assert "NCCL_IB_HCA" in finding.fix


def test_a_slow_port_in_another_place(vm):
    """The same names and rates in another order: fast is paired with slow (NVIDIA/nccl#1363)."""
    first = vm("mlx5_0", "mlx5_1", rates={"mlx5_1": 100})
    second = vm("mlx5_0", "mlx5_1", rates={"mlx5_0": 100})
    (finding,) = found(first, second, second)
    assert finding.subject == "vm1"
    assert "(mlx5_0 at 400 Gb/s, mlx5_1 at 100 Gb/s)" in finding.evidence


def test_a_container_that_opens_fewer(vm):
    """One device node of two exists, and a setting hides that (NVIDIA/nccl#2428)."""
    both, one = vm("erdma_0", "erdma_1"), vm("erdma_0", "erdma_1", nodes=1)
    (finding,) = found(both, both, one)
    assert (finding.severity, finding.subject) == ("warning", "vm3")
    assert "1 of 2 devices below /dev/infiniband" in finding.evidence
    ignoring = vm("erdma_0", "erdma_1", NCCL_IGNORE_NET_MISMATCH="1")
    (finding,) = found(ignoring, both, one)
    assert finding.severity == "error"
    assert "NCCL_IGNORE_NET_MISMATCH is set on vm1" in finding.why


def test_a_setting_of_one_vm(vm):
    """NCCL_IB_HCA may differ with the names; what it leaves is compared."""
    (finding,) = found(vm(*EIGHT), vm(*EIGHT, NCCL_IB_HCA="=mlx5_0"), vm(*EIGHT))
    assert (finding.subject, "vm2 has 1 RDMA port for NCCL" in finding.evidence) == ("vm2", True)
    assert found(vm("a", "b", NCCL_IB_HCA="=a"), vm("c", "d", NCCL_IB_HCA="=d")) == []
    assert found(vm(*EIGHT), vm(*EIGHT, NCCL_IB_HCA="mlx5")) == []


def test_storage_ports_are_not_counted(vm):
    """Ports of the other fabric that ranks exclude on every VM make no difference."""
    first = vm("mlx5_0", "mlx5_1", "mlx5_bond_0", ethernet=["mlx5_bond_0"])
    second = vm("mlx5_0", "mlx5_1", "mlx5_9", ethernet=["mlx5_9"])
    assert found(first, second, vm("mlx5_0", "mlx5_1")) == []
    assert len(found(first, vm("mlx5_0", "mlx5_3"))) == 1


@pytest.mark.parametrize(
    ("first", "second", "severity"),
    [
        ({"ethernet": ["b"]}, {"ethernet": ["a", "b"]}, "warning"),  # one has no InfiniBand
        ({"ethernet": ["b"], "rates": {"b": 100}}, {"down": ["b"]}, "info"),
        ({}, {"ethernet": ["a", "b"]}, "error"),
    ],
)
def test_link_layers(vm, first, second, severity):
    """The severity follows what is lost: nothing, speed, or the connection."""
    snapshots = vm("a", "b", **first), vm("a", "b", **second)
    layers = [one for one in found(*snapshots, rule="rdma_unlike") if "RDMA over" in one.evidence]
    assert [one.severity for one in layers] == [severity]


def test_another_number_is_found_once(vm):
    """Only the rule about numbers of ports reports it."""
    two, three = vm("mlx5_0", "mlx5_1"), vm("mlx5_0", "mlx5_1", "mlx5_2")
    assert found(two, three) == []
    (finding,) = found(two, three, rule="rdma_unlike")
    assert "issues 1277 and 2428" in finding.why


def test_what_is_not_known(vm, tmp_path):
    """A topology file and a VM that uses TCP alone have no set to compare."""
    file = tmp_path / "topology.xml"
    file.write_text(vm(*EIGHT).to_nccl_topology())
    assert found(vm(*EIGHT), Snapshot.from_nccl_topology(file)) == []
    assert found(vm(*EIGHT), vm("a", "b", "c", "d", "e", "f", "g", "h", NCCL_NET="Socket")) == []
