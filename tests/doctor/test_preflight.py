"""Preflight and doctor use the same rules for a VM's limits, and the same findings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100, mig_a100

from workbench.cluster.launchers import preflight
from workbench.cluster.launchers.placement import Link
from workbench.cluster.launchers.preflight import Preflight, Survey, Vms
from workbench.doctor import diagnose, rules
from workbench.hosts import parse_hosts
from workbench.widgets.hosts_view import HostsView
from workbench.wire.agent_messages import Facts, Hello, Loaded

NAMES = {rule.name for rule in rules.LIMITS}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass
class Vm:
    """An agent that has reported; of a single VM preflight reads nothing else."""

    name: str
    facts: Facts
    host: object = None
    hello: Hello = field(default_factory=lambda: Hello(0, 0, "", "3.11.7", "", 0, 0.0, ""))
    loaded: Loaded = field(default_factory=Loaded)

    def ask(self, question, **_about):
        import time

        assert question == "clock"
        return time.time()


def checked(snapshot, slots=1, host=None):
    """Return the result of preflight for one VM."""
    vm = Vm("vm1", Facts(None, snapshot.to_plain(), {}, {}, [0], {}), host)
    return preflight.check(Vms([vm], [Link("ens192", "10.0.0.1", "")], [slots]))


@pytest.fixture
def vm(machine):
    """A VM with an RDMA port; `gpus` of them, and other limits."""
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:3b:00.0"))

    def vm(gpus=0, **limits):
        given = {"memlock_bytes": "unlimited", "shm_bytes": 8 * GIB, "open_files": 65536}
        nvml = FakeNvml(*(h100(uuid=f"GPU-{n}", bus_id=f"00000000:0{n}:00.0") for n in range(gpus)))
        snapshot = snap(machine, nvml)
        return replace(snapshot, host=replace(snapshot.host, **(given | limits)))

    return vm


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    ("limit", "value", "rdma"),
    [
        *(("shm_bytes", size, True) for size in (0, 1, 64 * MIB - 1, 64 * MIB, 64 * MIB + 1)),
        *(("shm_bytes", size, True) for size in (256 * MIB, GIB - 1, GIB, 24 * GIB)),
        *(("memlock_bytes", size, rdma) for size in (0, 64 * KIB, 8 * MIB, GIB - 1, GIB, 64 * GIB)
          for rdma in (True, False)),
        ("memlock_bytes", "unlimited", True),
        *(("open_files", count, True) for count in (0, 64, 256, 1023, 1024, 1025, 20000)),
        ("open_files", "unlimited", True),
    ],
)  # fmt: skip
def test_one_verdict(vm, limit, value, rdma, gpus):
    """The same rules with the same severity, evidence and fix, for any limit."""
    snapshot = vm(gpus, **{limit: value})
    if not rdma:
        snapshot = replace(snapshot, nics=())
    doctors = [
        (one.rule, one.severity, one.evidence, one.fix)
        for one in diagnose(snapshot)
        if one.rule in NAMES
    ]
    found = checked(snapshot)
    assert [
        (one.rule, one.severity, one.evidence, one.fix)
        for one in found.problems
        if one.rule in NAMES
    ] == doctors
    assert found.fatal == []


def test_a_survey_shows_a_limit_once(vm):
    """Its two lists, of preflight and of the doctor, do not repeat each other."""
    snapshot = vm(shm_bytes=64 * MIB, open_files=1024, gpus=1)
    shown = repr(HostsView(Survey(checked(snapshot), {"vm1": snapshot})))
    assert shown.count("the shared memory of /dev/shm holds 64 MiB") == 1
    assert "1024 files" not in shown
    assert "error vm1" in shown.replace("\n", " ")


def test_what_is_good_to_know_is_no_fault(vm):
    """A survey with nothing worse says that nothing is wrong."""
    snapshot = vm(open_files=1024, gpus=1)
    found = checked(snapshot)
    assert [one.severity for one in found.problems] == ["info"]
    assert "All VMs can reach each other" in repr(HostsView(Survey(found, {})))
    assert "All VMs can reach each other" in repr(HostsView(Survey(Preflight([], [], []), {})))


def test_mig_devices_are_counted_as_ranks_get_them(machine):
    """Two MIG devices of one GPU are two ranks' worth, and a third rank has none."""
    snapshot = snap(machine, FakeNvml(mig_a100()))
    assert [one.rule for one in checked(snapshot, 2).problems if one.rule == "too_few_gpus"] == []
    found = checked(snapshot, 3)
    assert found.fatal == []  # Gloo and CPUs can still be used
    (problem,) = [one for one in found.problems if one.rule == "too_few_gpus"]
    assert (problem.severity, problem.evidence) == (
        "warning",
        "3 ranks on 2 GPUs: for NCCL, each rank needs its own",
    )
    assert "start 2 ranks there" in problem.fix
    assert "MIG" in problem.fix
    assert "Gloo" in problem.fix


def test_rdma_is_what_nccl_uses(vm):
    """The column counts the VM's ports, whatever interface the VMs connect by."""
    (row,) = checked(vm(1)).rows
    assert row["RDMA"] == "1 port"
    (host,) = parse_hosts([{"name": "vm1", "environment": {"NCCL_IB_DISABLE": "1"}}])
    (row,) = checked(vm(1), host=host).rows
    assert row["RDMA"] == "no"


def test_settings_of_the_host_file_count(vm):
    """The environment of the ranks is checked, not only that of the machine."""
    (host,) = parse_hosts([{"name": "vm1", "environment": {"NCCL_PROTO": "LL"}}])
    agent = Vm("vm1", Facts(None, vm().to_plain(), {}, {}, [], {}), host)
    assert preflight.snapshot_of(agent).host.nccl_settings["NCCL_PROTO"] == "LL"


def test_versions_that_differ(vm):
    """A finding of the doctor's kind names the VM with the rarest value, and all values."""
    plain = Facts(None, vm().to_plain(), {}, {}, [0], {})
    vms = [Vm(f"vm{number}", plain, loaded=Loaded({"torch": "2.13.0"})) for number in (1, 2, 3)]
    vms[1].loaded.versions["torch"] = "2.12.1"
    links = [Link("ens192", f"10.0.0.{number}", "") for number in (1, 2, 3)]
    (finding,) = preflight.version_mismatch(Vms(vms, links, [1, 1, 1]))
    assert (finding.rule, finding.severity, finding.subject) == ("version_mismatch", "error", "vm2")
    assert finding.evidence == "torch differs (vm1 has 2.13.0, vm2 has 2.12.1, vm3 has 2.13.0)"
    assert all((finding.why, finding.fix, finding.source))
    vms[1].loaded.versions.clear()  # not loaded yet
    assert list(preflight.version_mismatch(Vms(vms, links, [1, 1, 1]))) == []
