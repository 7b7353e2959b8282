"""Use of allocated GPUs and ranks, by day and notebook."""

import dataclasses
import datetime
import os
import sqlite3
import subprocess
import sys

import pytest

from workbench.cluster.use_meter import UseMeter
from workbench.errors import UsageError
from workbench.ranks import RankInfo
from workbench.resources import Unknown
from workbench.resources.usage import CpuUse, GpuUse, MemoryUse, ProcessUse, Sample
from workbench.resources.use import UseRecord, UseStore, by_day, idle_allocations, today
from workbench.widgets.use import UseView

NOT = Unknown("not read")


def gpu(index, percent):
    values = {field.name: NOT for field in dataclasses.fields(GpuUse)}
    return GpuUse(**values | {"index": index, "utilization_percent": percent})


def process(pid, percent):
    return ProcessUse(pid, "python", "rank", None, None, "c", 0, percent, 0, ())


def sample(gpus=(), processes=()):
    return Sample(0.0, CpuUse(NOT), MemoryUse(NOT, NOT), tuple(gpus), (), tuple(processes))


def rank(number, device, vm="vm1", pid=10, threads=2):
    return RankInfo(number, vm, pid + number, device, "any", "eth0", "ready", threads)


class Clock:
    """Seconds that a test advances."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    return UseStore(tmp_path / "state" / "use.sqlite")


def metered(store, rounds, ranks, samples, step_s=2.0):
    """Feed a meter: each round says whether a cell runs from then on."""
    clock = Clock()
    meter = UseMeter("c1", store, clock)
    for in_cell in rounds:
        meter.add(ranks, samples, in_cell=in_cell)
        clock.now += step_s
    meter.flush()
    assert meter.error == ""
    return {one.device: one for one in store.read(1)}


def test_gpu_seconds_are_weighted_by_utilization(store, monkeypatch):
    """Two GPUs of one VM: allocated, used and in cells, each in GPU-seconds."""
    monkeypatch.setenv("JPY_SESSION_NAME", "work/train.ipynb")
    ranks = [rank(0, "0 (A100)"), rank(1, "1 (A100)")]
    found = metered(
        store, [True, True, False, False, False], ranks,
        {"vm1": sample([gpu(0, 50.0), gpu(1, 0.0)])},
    )  # fmt: skip
    assert (found["GPU 0"].allocated_s, found["GPU 0"].used_s) == (8.0, 4.0)
    assert (found["GPU 1"].allocated_s, found["GPU 1"].used_s) == (8.0, 0.0)
    assert found["GPU 0"].cells_s == 4.0
    assert found["GPU 0"].notebook == "work/train.ipynb"
    assert found["GPU 0"].busy_s > 0
    assert found["GPU 1"].busy_s == 0


def test_ranks_that_share_a_gpu_count_it_once(store):
    """A GPU's seconds are of the GPU, however many ranks use it."""
    found = metered(
        store, [True] * 3, [rank(0, "0 (A100)"), rank(1, "0 (A100)")],
        {"vm1": sample([gpu(0, 100.0)])},
    )  # fmt: skip
    assert found["GPU 0"].allocated_s == 4.0


def test_unknown_utilization_is_not_zero(store):
    """Without utilization the time is allocated, not measured, and the allocation not idle."""
    found = metered(store, [True] * 400, [rank(0, "0 (A100)")], {"vm1": sample([gpu(0, NOT)])})
    one = found["GPU 0"]
    assert (one.allocated_s, one.measured_s) == (798.0, 0.0)
    assert idle_allocations([one]) == []
    assert "\u2013 (not measured)" in repr_of(store)


def test_cpu_ranks_use_cpu_time_per_thread(store):
    """A rank of two threads at 100 % of a core has used half; at most all."""
    found = metered(
        store, [True] * 3, [rank(0, "CPU"), rank(1, "CPU")],
        {"vm1": sample(processes=[process(10, 100.0), process(11, 390.0)])},
    )  # fmt: skip
    one = found["CPU ranks"]
    assert (one.allocated_s, one.used_s) == (8.0, 6.0)
    assert one.last_s - one.first_s == 4.0  # the time that passed, not that of all ranks


def test_a_suspended_machine_is_not_allocated_time(store):
    """A gap between samples of more than half a minute is not counted."""
    found = metered(
        store, [True] * 3, [rank(0, "0 (A100)")], {"vm1": sample([gpu(0, 9.0)])}, step_s=3600
    )
    assert found == {}


def record(day, device="GPU 0", allocated=3600.0, used=0.0, notebook="a.ipynb", **more):
    values = {
        "day": day, "notebook": notebook, "cluster": "c1", "vm": "vm1", "device": device,
        "allocated_s": allocated, "measured_s": allocated, "used_s": used, "cells_s": 0.0,
        "first_s": 100.0, "last_s": 200.0, "busy_s": 0.0,
    }  # fmt: skip
    return UseRecord(**values | more)


def repr_of(store):
    return repr(UseView(7, store))


def test_idle_allocations_are_listed_by_notebook(store):
    """Less than 5 % used over the days is idle; short allocations and busy ones are not."""
    day = today()
    store.add(
        [
            record(day, "GPU 0", used=36.0, busy_s=150.0),
            record(day, "GPU 1", used=3000.0),
            record(day, "GPU 2", allocated=60.0, notebook="b.ipynb"),
        ]
    )
    store.add([record(day, "GPU 0", used=36.0, first_s=50.0, last_s=300.0)])
    (idle,) = idle_allocations(store.read(7))
    assert (idle.device, idle.allocated_s, idle.used_s) == ("GPU 0", 7200.0, 72.0)
    assert (idle.first_s, idle.last_s, idle.busy_s) == (50.0, 300.0, 150.0)
    gpus = {one.notebook: one for one in by_day(store.read(7))}
    assert gpus["a.ipynb"].allocated_s == 3 * 3600
    text = repr_of(store)
    assert "Idle allocations, of which less than 5% was used" in text
    assert "1.0 %" in text
    assert "28.4 %" in text  # of both GPUs


def test_old_rows_are_deleted(store):
    """The database keeps about three months, and only the requested days are read."""
    old = datetime.date.today() - datetime.timedelta(days=100)
    week = datetime.date.today() - datetime.timedelta(days=10)
    store.add([record(old.isoformat()), record(week.isoformat()), record(today())])
    assert [one.day for one in store.read(92)] == [week.isoformat(), today()]
    assert [one.day for one in store.read(7)] == [today()]
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*) FROM use").fetchone() == (2,)


@pytest.mark.parametrize("days", [0, -1, 93])
def test_days_that_are_not_kept_are_refused(store, days):
    """The error says how many can be shown."""
    with pytest.raises(UsageError, match=r"92 days are kept. Give 1 to 92"):
        store.read(days)


def test_a_damaged_database_is_reported(store):
    """The error names the file, and what to do."""
    store.path.parent.mkdir()
    store.path.write_text("not a database, but long enough to be taken for one" * 40)
    with pytest.raises(UsageError, match=r"cannot be read .* remove it"):
        store.read(7)


def test_nothing_is_written_when_it_is_off(store, monkeypatch):
    """With the setting off, a meter leaves no file, and the view says so."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_USE", "off")
    metered(store, [True] * 3, [rank(0, "CPU")], {"vm1": sample(processes=[process(10, 9.0)])})
    assert not store.path.parent.exists()


def test_the_command_line_shows_it(store, tmp_path):
    """`workbench use` prints the table, and what is not recorded."""
    UseStore(tmp_path / "gradient-workbench" / "use.sqlite").add([record(today(), used=1800.0)])
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "GRADIENT_WORKBENCH_USE": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "use", "--days", "1"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "a.ipynb" in done.stdout
    assert "50.0 %" in done.stdout
    assert "GRADIENT_WORKBENCH_USE=off" in done.stdout.splitlines()[-1]


def test_the_servers_setting_reaches_its_kernels(monkeypatch):
    """`c.GradientWorkbench.record_use = False` sets the variable that kernels inherit."""
    from traitlets.config import Config

    from workbench.server.settings import GradientWorkbench

    monkeypatch.setenv("GRADIENT_WORKBENCH_USE", "")  # so that it is removed afterwards
    monkeypatch.delenv("GRADIENT_WORKBENCH_USE")
    GradientWorkbench(config=Config()).apply()
    assert "GRADIENT_WORKBENCH_USE" not in os.environ
    GradientWorkbench(config=Config({"GradientWorkbench": {"record_use": False}})).apply()
    assert os.environ["GRADIENT_WORKBENCH_USE"] == "off"
