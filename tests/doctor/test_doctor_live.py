"""Rules over current use, each with a good and a bad sample."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100

from workbench.doctor import diagnose
from workbench.resources import UNLIMITED, Unknown
from workbench.resources.usage import (
    CpuUse,
    GpuShare,
    GpuUse,
    MemoryUse,
    NicUse,
    ProcessUse,
    Sample,
)

NOT_READ = Unknown("not read")


def record(cls, **known):
    """A record of which only some values are known."""
    return cls(**{field.name: known.get(field.name, NOT_READ) for field in fields(cls)})


def sample(idle_s=NOT_READ, processes=(), **errors):
    return Sample(
        time=0.0,
        cpu=CpuUse(NOT_READ),
        memory=MemoryUse(NOT_READ, NOT_READ),
        gpus=(record(GpuUse, index=0, idle_s=idle_s),),
        nics=(record(NicUse, name="mlx5_0", errors=errors),),
        processes=processes,
    )


def process(kind, **values):
    share = GpuShare(0, 6 << 30)
    values = {"name": "python3", "kernel_id": None, "notebook": None, "cluster": None, **values}
    return record(ProcessUse, pid=4711, kind=kind, gpus=(share,), **{"rank": None, **values})


@pytest.fixture
def vm(machine):
    snapshot = snap(machine, FakeNvml(h100()))
    good = {"shm_bytes": 8 << 30, "memlock_bytes": UNLIMITED, "open_files": 65536}
    return replace(snapshot, host=replace(snapshot.host, **good))


def test_nothing_is_idle(vm):
    """A GPU that is busy, paused for a moment, or not known to be idle is no finding."""
    for idle_s in (0.0, 200.0, NOT_READ):
        assert diagnose(vm, sample(idle_s)) == []
    assert diagnose(vm) == []


@pytest.mark.parametrize(
    ("idle_s", "severity", "duration"),
    [(420.0, "info", "7 min"), (2_820.0, "warning", "47 min"), (11_000.0, "warning", "3 h 3 min")],
)
def test_idle_and_taken(vm, idle_s, severity, duration):
    """How long a GPU is idle with memory allocated decides the severity."""
    (finding,) = diagnose(vm, sample(idle_s))
    assert (finding.rule, finding.severity, finding.subject) == ("gpu_idle", severity, "GPU 0")
    assert f"idle for {duration}" in finding.evidence


@pytest.mark.parametrize(
    ("user", "who", "fix"),
    [
        (process("kernel", notebook="train.ipynb"), "the kernel of train.ipynb", "empty_cache"),
        (process("kernel"), "a Jupyter kernel", "Shut the kernel down"),
        (process("rank", cluster="local-3fa2", rank=1), "rank 1 of cluster local-3fa2", "%cluster"),
        (process("other"), "python3 (pid 4711, 6 GiB)", "`kill 4711`"),
    ],
)
def test_who_uses_it(vm, user, who, fix):
    """The process is named as its owner knows it, with the fix that fits."""
    (finding,) = diagnose(vm, sample(3_600.0, (user,)))
    assert who in finding.evidence
    assert fix in finding.fix


def test_rdma_errors(vm):
    """Rising counters are reported with their rate; single errors are not."""
    (finding,) = diagnose(vm, sample(out_of_sequence=42.0, packet_seq_err=0.1))
    assert (finding.rule, finding.subject) == ("rdma_errors", "mlx5_0")
    assert finding.evidence == "out_of_sequence 42/s"
    assert "mlnx_qos" in finding.fix
    (finding,) = diagnose(vm, sample(symbol_error=3.0))
    assert "cable" in finding.fix
    assert diagnose(vm, sample(out_of_sequence=0.0, rx_dropped=500.0)) == []
    assert diagnose(vm, sample(out_of_sequence=NOT_READ)) == []
