"""Causes in the VMs: copies, cores, shared GPUs, what the doctor finds; and recorded runs."""

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from clusters import training
from explained import Trained, link, work
from iterations import record
from recorded import MS
from recorded_training import Training
from timers import eventually

import workbench as wb
from workbench.advisor.evidence import Evidence
from workbench.doctor.finding import Finding
from workbench.resources.gpus.vgpu import decode_profile
from workbench.timings.store import Store
from workbench.widgets.views import Causes

EXAMPLES = Path(__file__).parents[2] / "notebooks" / "examples"
MB = 1 << 20
VM1, VM2 = (wb.Snapshot.load(EXAMPLES / f"vm{number}.json") for number in (1, 2))
SMALL = work([MB] * 4)


def named(training):
    """The causes by name."""
    return {one.name: one for one in wb.explain(training)}


def shared(snapshot):
    """The same VM with a vGPU of a part of a GPU's memory."""
    profile = "A100-10C"
    gpus = tuple(replace(gpu, vgpu_profile=profile, vgpu=decode_profile(profile))
                 for gpu in snapshot.gpus)  # fmt: skip
    return replace(snapshot, gpus=gpus)


def test_copies_from_host_to_device():
    """Their time is the saving at most, and their rate is what to measure."""
    found = named(Trained(SMALL, link(10.0), copy_ms=12))["copies from host to device"]
    assert (found.bound, found.saving_us) == (True, pytest.approx(12_000))
    assert "pin_memory=True" in found.change
    assert "%fabric calibrate" in found.measure
    assert "copies from host to device" not in named(Trained(SMALL, link(10.0)))


def now_and_then(index, rank):
    """Both ranks compute for 40 ms more in every fourth iteration."""
    return 40 if index % 4 == 3 else 0


def test_compute_of_varying_speed():
    """Without a shared GPU it says what to measure; with one, it names the profile."""
    found = named(Trained(SMALL, link(10.0), slower=now_and_then))["compute of varying speed"]
    assert found.saving_us == pytest.approx(40_000 * 3 / 11)  # without the first iteration
    assert "take 40.00 ms longer than usual in 27% of the iterations" in found.evidence
    assert "column st of `vmstat 1`" in found.measure
    assert found.low_us < found.saving_us < found.high_us
    snapshots = {"vm1": shared(VM1), "vm2": VM2}
    trained = Trained(SMALL, link(10.0), slower=now_and_then, snapshots=snapshots, gpu="0 (A100)")
    found = named(trained)["compute of varying speed"]
    assert "on vm1, other VMs may use the GPU in turn (time-sliced profile A100-10C)" in (
        found.evidence
    )
    assert not found.measure
    assert "compute of varying speed" not in named(Trained(SMALL, link(10.0)))


class Late(Trained):
    """A rank computes 30 ms longer, and the other one waits for it."""

    def __init__(self, late, **options):
        super().__init__(SMALL, link(10.0), **options)
        self.store = Store()
        for index in range(20):
            for rank in (0, 1):
                waits = 0 if rank == late else 30
                one = record(index, communication=10 + waits, exposed=4 + waits)
                one.forward_ns += (30 - waits) * MS
                one.duration_ns += (30 - waits) * MS
                self.store.add(rank, one)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_late_rank_is_explained_by_its_own_vm(rank):
    """The doctor finds an unlicensed vGPU on vm2 only, and that explains only its rank."""
    found = named(Late(rank, snapshots={"vm1": VM1, "vm2": VM2}, gpu="0 (A100)"))
    found = found[f"waiting for rank {rank}"]
    assert "forward takes 30.00 ms longer" in found.evidence
    assert ("runs without a licence" in found.evidence) == (rank == 1)
    assert ("ClientConfigToken" in found.change) == (rank == 1)


def test_findings_explain_communication_that_takes_time():
    """A finding is evidence of a measured cause; without time in the run it is no cause."""
    snapshots = {"vm1": VM1, "vm2": VM2}
    slow, fast, on_cpus = (
        wb.explain(Trained(SMALL, link(gbps), snapshots=snapshots, gpu=gpu))
        for gbps, gpu in ((0.2, "0 (A100)"), (10_000.0, "0 (A100)"), (0.2, "CPU"))
    )
    said = "the doctor finds vm1, vm2: GPUs 0-1: no RDMA port is near enough"
    assert said in next(one for one in slow if one.name == "exposed communication").evidence
    for found in fast, on_cpus:
        assert not any("no RDMA port is near enough" in one.evidence for one in found)


def test_findings_of_a_vm_are_not_those_of_vms_whose_names_begin_alike():
    """Findings across VMs name several of them in one subject."""
    subjects = ("vm10, vm2", "vm1, vm2", "dev-vm1", "vm1.lan", "ens192 of vm1", "NICs: vm1: ens192")
    found = [("", Finding("r", "warning", one, f"({one})", "", "", "")) for one in subjects]
    evidence = Evidence(None, None, None)
    vars(evidence)["_findings"] = found
    text, _ = evidence.findings(("r",), "vm1")
    assert {one for one in subjects if f"({one})" in text} == {subjects[1], *subjects[4:]}


def test_a_stopped_cluster_has_the_hardware_that_its_run_keeps(tmp_path):
    """Its agents no longer answer."""
    stopped = Training(folder=tmp_path, snapshots={"vm1": VM1.to_plain()})
    stopped.train(12)
    stopped.close()
    stopped.snapshot = dict
    assert Evidence(stopped, stopped.timings, stopped.timings.rows()).snapshots == {"vm1": VM1}


@pytest.mark.parametrize(("cores", "is_cause"), [(2, True), (8, False)])
def test_cpu_time_of_communication(cores, is_cause):
    """It costs only where compute has threads for all cores."""
    snapshot = replace(VM1, host=replace(VM1.host, cpus=cores))
    snapshots = {"vm1": snapshot, "vm2": snapshot}
    found = named(Trained(SMALL, link(1.0), snapshots=snapshots, cpu_ms=30))
    assert ("CPU time of communication" in found) == is_cause
    if is_cause:
        assert "2 threads of PyTorch have 2 cores" in found["CPU time of communication"].evidence


def test_text_and_table_have_all_of_a_cause():
    """The interval, and what to measure, in a terminal and in a notebook."""
    causes = wb.explain(Trained(SMALL, link(0.1), copy_ms=12))
    text, table = repr(Causes(causes)), Causes(causes)._repr_html_()
    for one in causes:
        for part in (one.name, one.uncertainty, one.saving):
            assert part in text
            assert part in table
        assert one.name in str(one)
        assert one.measure in text
        assert escape(one.measure) in table
    assert len({line.index("]  ") for line in text.splitlines()}) == 1  # aligned


def written(cluster, iterations):
    """The cluster's run, once the iterations of its last cell are on the disk."""
    path, rows = cluster.timings.path, cluster.timings.rows()
    assert len(rows[rows["cell"] == rows["cell"].max()]) == 2 * iterations
    assert eventually(lambda: (path / "run.json").exists() and len(wb.open_run(path)) == len(rows))
    return wb.open_run(path)


def test_a_recorded_run_has_what_its_cluster_had(cluster):
    """Snapshots, transports and the calibration of the ranks are in the run."""
    cluster.calibrate(seconds=2)
    cluster.run(training(12, width=256))
    run = written(cluster, 12)
    assert set(run.snapshot()) == {info.vm for info in cluster.ranks}
    assert run.facts["calibration"]["n"] == 2
    now, later = wb.explain(cluster), wb.explain(run)
    assert [one.name for one in later] == [one.name for one in now]
    assert [one.change for one in later] == [one.change for one in now]
    cluster.fabric = None


def test_damaged_hardware_of_a_run_is_reported(cluster):
    """Its timings are explained all the same."""
    cluster.run(training(12))
    run = written(cluster, 12)
    (run.path / "snapshots.json").write_text(json.dumps({"vm1": {"version": "other"}}))
    (run.path / "run.json").write_text(
        json.dumps(run.facts | {"transports": [1], "calibration": {"n": 2}})
    )
    damaged = wb.open_run(run.path)
    assert wb.explain(damaged) is not None
    assert damaged.snapshot() == {}
    assert "the hardware of its VMs cannot be read" in " ".join(damaged.problems)
