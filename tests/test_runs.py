"""Runs on disk: written while ranks train, read whatever became of their kernel."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from array import array
from pathlib import Path

import numpy as np
import pytest
from timers import within

import workbench as wb
from workbench.errors import RunError, UsageError
from workbench.timings import Timings
from workbench.wire import Flag, IterationRecord, Layout, Message, Outbox

MS = 1_000_000
RANKS = [{"rank": 0, "vm": "vm1"}, {"rank": 1, "vm": "vm2"}]


def layout(*names, number=0):
    """A layout of allreduces of the optimizer."""
    size = len(names)
    return Layout(
        number, names, (400,) * size, (1,) * size, ("allreduce",) * size, (0,) * size,
        (2,) * size, ("optimizer",) * size,
    )  # fmt: skip


LAYOUT = layout("a", "b")


def record(index, *, cell=1, exposed=4, collectives=2, **more):
    """An iteration of two ranks whose phases add up; its collectives end 2 us after they begin."""
    phases = {
        "data_ns": MS, "copy_ns": 0, "forward_ns": 5 * MS, "backward_ns": 8 * MS,
        "exposed_ns": exposed * MS, "optimizer_ns": 2 * MS, "other_ns": 0,
    }  # fmt: skip
    duration = sum(phases.values())
    submitted = range(10, 10 + collectives)
    return IterationRecord(
        cell, index, index * duration, duration, **phases,
        communication_ns=(exposed + 6) * MS, overlapped_ns=6 * MS,
        size_bytes=1200, tensors=3, world_size=2, **{
            "submitted": array("I", submitted),
            "unfinished": array("I", submitted),
            "finished": array("I", (at + 20 for at in submitted)),
        } | more,
    )  # fmt: skip


class Training:
    """Two ranks that send records to a kernel's timings, over their real channels."""

    def __init__(self, name="local-1", *, state=None, **options):
        self.timings = Timings()
        self.timings.listen(state=state)
        self.timings.keep(name, RANKS, **options)
        self.outboxes = [Outbox(self.timings.address_for(rank)) for rank in range(2)]
        self.cell = 0

    def train(self, iterations, *, layout=LAYOUT, **options):
        """One cell; its end is when all records have come."""
        self.cell += 1
        self.timings.begin_cell(self.cell)
        for outbox in self.outboxes:
            if layout is not None:
                outbox.send(Message("layout", layout.to_content()))
            for index in range(iterations):
                packed = record(index, cell=self.cell, **options).pack()
                outbox.send(Message("records", {}, (packed,)))
        assert self.timings.end_cell(self.cell, {0: iterations, 1: iterations}, timeout_s=10)
        return self.timings

    def close(self):
        for outbox in self.outboxes:
            outbox.close()
        self.timings.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where this test's runs are."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def training():
    """Start trainings, and close them after the test."""
    begun = []

    def begin(*arguments, **options):
        begun.append(Training(*arguments, **options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def warned(action):
    """The warnings that an action gives."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        action()
    return told


def same(run, timings):
    """Whether a run answers as the timings it was written from.

    A clock is known better later: what was written of it stands as it was then.
    """
    by_clocks = ["wait_us"]
    assert run.to_frame().drop(columns=by_clocks).equals(timings.to_frame().drop(columns=by_clocks))
    assert run.collectives().equals(timings.collectives())
    assert run.stragglers().equals(timings.stragglers())
    assert repr(run.summary()) == repr(timings.summary())
    assert len(run) == len(timings)


def test_a_run_answers_as_its_timings_did(training):
    """Every figure that memory has is on disk, during the run and after its end."""
    one = training()
    timings = one.train(5)
    running = wb.open_run(timings.path)
    assert running.state == "running"
    same(running, timings)
    one.train(3)
    same(running, timings)
    one.close()
    ended = wb.open_run(timings.path.name)
    same(ended, timings)
    assert (ended.state, ended.problems, ended.iterations) == ("ended", [], 8)


def test_it_says_what_it_was(training):
    """Its cluster, ranks, start and versions are there without a row being read."""
    before = time.time()
    run = wb.open_run(training("local-7").train(1).path)
    assert (run.cluster, run.ranks) == ("local-7", RANKS)
    assert before - 1 <= run.started.timestamp() <= time.time()
    assert run.facts["package"] == wb.__version__
    assert {"format", "record", "world_size"} <= run.facts.keys()


def test_a_cluster_that_trains_nothing_leaves_no_run(training, folder):
    """A run begins with the first iteration."""
    one = training()
    one.timings.begin_cell(1)
    one.timings.end_cell(1, {})
    one.close()
    assert not folder.exists()


def test_layouts_that_change_keep_their_names(training):
    """A number that means other tensors after the ranks joined anew is told apart."""
    one = training()
    one.train(2)
    one.timings.joined()
    other = layout("c")
    timings = one.train(2, layout=other, collectives=1)
    run = wb.open_run(timings.path)
    same(run, timings)
    assert run.collectives(2, 3)["name"].unique().tolist() == ["c"]
    assert timings.collectives(2, 3).equals(run.collectives(2, 3))
    assert set(run.collectives(last=1)["name"]) == {"a", "b"}


def test_a_run_can_be_found_by_its_cluster(training):
    """Of several runs of a cluster its name means the newest; the list has them all."""
    for length in (1, 2):
        one = training("local-ab")
        one.train(length)
        one.close()
        time.sleep(1.1)  # a run's name tells seconds
    assert wb.open_run("local-ab").iterations == 2
    assert [(run.cluster, run.iterations) for run in wb.list_runs()] == [
        ("local-ab", 2),
        ("local-ab", 1),
    ]


def test_a_folder_can_be_named(training, tmp_path):
    """The parameter goes before the environment's variable."""
    one = training(folder=tmp_path / "other")
    timings = one.train(1)
    assert timings.path.parent == tmp_path / "other"
    assert [run.name for run in wb.list_runs(tmp_path / "other")] == [timings.path.name]
    assert wb.list_runs() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_DATA_HOME": "data"}, "data/gradient-workbench/runs"),
        ({"HOME": "home", "XDG_DATA_HOME": ""}, "home/.local/share/gradient-workbench/runs"),
    ],
)
def test_by_default_runs_are_the_users_data(training, tmp_path, monkeypatch, variables, expected):
    """Where nothing is said, the folder is the user's own, which nobody else may read."""
    monkeypatch.delenv("GRADIENT_WORKBENCH_RUNS")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    path = training().train(1).path
    assert path.parent == tmp_path / expected
    assert path.stat().st_mode & 0o077 == 0


# a kernel that is killed

KERNEL = """
import sys, time
sys.path.insert(0, {tests!r})
from test_runs import Training
one = Training("killed")
one.train(4)
print(one.timings.path, flush=True)
one.timings.begin_cell(2)
index = 0
while True:
    from test_runs import record, Message
    for outbox in one.outboxes:
        outbox.send(Message("records", {{}}, (record(index, cell=2).pack(),)))
    index += 1
    time.sleep(0.005)
"""


@pytest.fixture
def kernel():
    """Start kernels that train without end, and kill them."""
    source = KERNEL.format(tests=str(Path(__file__).parent))
    begun = []

    def begin():
        begun.append(subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE))
        return begun[-1], begun[-1].stdout.readline().decode().strip()

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def test_what_a_killed_kernel_has_flushed_is_there(kernel):
    """After kill -9 all is read up to the last flush, and it is said that the end is missing."""
    process, path = kernel()
    run = wb.open_run(path)
    assert within(20, lambda: run.iterations >= 100)
    assert run.state == "running"
    before = len(run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.warns(UserWarning, match="without closing"):
        run = wb.open_run(path)
    assert run.state == "cut off"
    assert len(run) >= before > 100
    assert (np.diff(np.sort(run.to_frame().query("rank == 0")["iteration"])) == 1).all()
    collectives = run.collectives()
    assert collectives.groupby(["iteration", "rank"]).size().eq(2).all()


def test_two_kernels_write_at_once(kernel):
    """Runs of different kernels stand beside each other, and neither removes the other's."""
    os.environ["GRADIENT_WORKBENCH_MOST_RUNS"] = "1"
    try:
        (_, first), (_, second) = kernel(), kernel()
    finally:
        del os.environ["GRADIENT_WORKBENCH_MOST_RUNS"]
    assert first != second
    runs = wb.list_runs()
    assert {str(run.path) for run in runs} == {first, second}
    assert all(run.state == "running" and run.iterations >= 4 for run in runs)


def test_the_next_kernel_goes_on_with_a_run(training):
    """Rows, iteration numbers and single collectives are those of one run of two kernels."""
    first = training()
    first.train(3)
    state = first.timings.to_state()
    first.close()
    second = training(state=state)
    second.cell = 1
    assert len(second.timings) == 6
    assert second.timings.collectives().equals(first.timings.collectives())
    timings = second.train(2, layout=None)  # the ranks have sent their layouts long ago
    assert sorted(timings.to_frame()["iteration"].unique()) == list(range(5))
    second.close()
    run = wb.open_run(timings.path)
    same(run, timings)
    assert (run.state, run.problems) == ("ended", [])


def test_the_next_kernel_begins_a_run_where_none_was_trained(training):
    """A cluster that was met again before its first iteration has its run from there on."""
    first = training()
    state = first.timings.to_state()
    first.close()
    timings = training(state=state).train(2)
    assert str(timings.path) == state["run"]
    same(wb.open_run(timings.path), timings)


# files that are not whole


@pytest.fixture
def ended(training):
    """A run of several flushes that has ended, and its timings."""
    one = training()
    for _ in range(3):
        one.train(4)
    one.close()
    return one.timings


@pytest.mark.parametrize("kind", ["iterations", "collectives", "layouts"])
def test_a_file_cut_at_any_byte_gives_what_is_before(ended, kind, recwarn):
    """No cut raises; what is there is a beginning of the whole, and the cut is said."""
    path = ended.path / f"{kind}-0.arrows"
    whole, rows = path.read_bytes(), ended.to_frame()
    sizes = set()
    for size in {*range(0, len(whole), 251), *range(len(whole) - 20, len(whole))}:
        path.write_bytes(whole[:size])
        run = wb.open_run(ended.path)
        found, single = run.to_frame(), run.collectives()
        assert found.equals(rows[rows["iteration"].isin(found["iteration"].unique())])
        assert len(single) in {0, 16, 32, 48}
        assert any("cut short" in problem for problem in run.problems), size
        sizes.add(len(found) if kind == "iterations" else len(single))
    assert len(sizes) >= (4 if kind != "layouts" else 2)
    path.write_bytes(whole)
    assert wb.open_run(ended.path).problems == []


def test_a_file_with_other_bytes_in_it_is_no_disaster(ended, recwarn):
    """Damage anywhere ends what can be read, at most, and is never an error of ours."""
    path = ended.path / "iterations-0.arrows"
    whole = path.read_bytes()
    for place in range(0, len(whole), 131):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert len(wb.open_run(ended.path).to_frame()) <= 24
    path.write_bytes(b"this is no Arrow stream at all" * 9)
    run = wb.open_run(ended.path)
    assert len(run) == 0
    assert not run.collectives().empty
    assert any("iterations-0.arrows" in problem for problem in run.problems)


def test_a_run_without_its_description(ended):
    """The timings of a folder whose run.json is lost or broken can still be read."""
    (ended.path / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="what the run was cannot be read"):
        run = wb.open_run(ended.path)
    assert run.to_frame().equals(ended.to_frame())
    (ended.path / "run.json").unlink()
    with pytest.warns(UserWarning, match="what the run was cannot be read"):
        run = wb.open_run(ended.path)
    assert (run.cluster, run.ranks, run.started) == ("not known", [], None)


@pytest.mark.filterwarnings("ignore:run")
def test_another_version_is_read_by_the_names_that_both_know(ended):
    """A later format, a missing column and a new one are said, and the rest is read."""
    import pyarrow as pa

    facts = ended.path / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format": 99}))
    path = ended.path / "iterations-0.arrows"
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table = table.drop_columns(["data_ns"]).append_column("later", pa.array([1] * len(table)))
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.warns(UserWarning, match="format 99"):
        run = wb.open_run(ended.path)
    text = " ".join(run.problems)
    assert all(part in text for part in ("format 99", "data_ns", "later"))
    assert run.to_frame()["forward_us"].equals(ended.to_frame()["forward_us"])
    assert (run.to_frame()["data_us"] == 0).all()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda path: None, "no such"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path.mkdir(), (path / "x").touch()), "holds no run"),
        (lambda path: path.write_text("x"), "is a file"),
    ],
    ids=["nothing", "an empty folder", "another folder", "a file"],
)
def test_what_is_no_run_is_refused(tmp_path, made, says):
    """The error says what was asked, what was found, and where runs are."""
    made(tmp_path / "asked")
    with pytest.raises(RunError, match=f"asked.*{says}.*runs"):
        wb.open_run(tmp_path / "asked")


# how much is kept


def old(training, name, began):
    """A run that ended, and began at some time."""
    one = training(name)
    one.train(1)
    one.close()
    facts = one.timings.path / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"started_s": began}))
    return one.timings.path


def test_the_oldest_runs_go_first_and_none_that_is_written(training, monkeypatch):
    """Above the most runs the oldest are removed, but those that run stay, however old."""
    running = training("runs").train(1).path
    facts = running / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"started_s": 0}))
    second, first = old(training, "second", 200), old(training, "first", 100)
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "3")
    newest = training("newest").train(1).path
    assert not first.exists()
    assert {run.path for run in wb.list_runs()} == {running, second, newest}


def test_the_bytes_of_all_runs_are_bounded(training, monkeypatch):
    """Above the most bytes the oldest are removed; what is not a run's file is left alone."""
    first, second = old(training, "first", 100), old(training, "second", 200)
    (first / "notes.txt").write_text("mine")
    room = sum(path.stat().st_size for path in second.iterdir())
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_BYTES", str(room))
    training("newest").train(1)
    assert [path.name for path in first.iterdir()] == ["notes.txt"]
    assert second.exists()


def test_a_run_alone_does_not_outgrow_the_bytes(training, monkeypatch):
    """Single collectives end where the room does, iterations go on, and the run says so."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_BYTES", "1")
    one = training()
    for _ in range(3):
        timings = one.train(2)
    with pytest.warns(UserWarning, match="left out: single collectives from iteration"):
        run = wb.open_run(timings.path)
    assert run.to_frame().equals(timings.to_frame())
    assert len(run.collectives()) < len(timings.collectives())


def test_a_limit_that_is_none_is_said(training, monkeypatch):
    """A variable that is no number stops no training."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "many")
    with pytest.warns(RuntimeWarning, match="MOST_RUNS='many'"):
        timings = training().train(2)
    assert len(timings) == 4


def test_a_kept_clusters_run_waits_for_its_next_kernel(training, monkeypatch):
    """Between two kernels nobody writes, and yet the run is not removed."""
    one = training("kept", kept_s=60)
    path = one.train(1).path
    one.close()
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "1")
    training("newest").train(1)
    assert path.exists()


# disks


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A file system of 64 KB, for the runs."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(disk)], check=True)
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(disk / "runs"))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_said_once_and_nothing_is_lost(training, small_disk):
    """Training goes on in memory; when there is room again the whole run is on disk."""
    one = training()
    one.train(4)
    full = small_disk / "full"
    with contextlib.suppress(OSError), full.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    told = [str(said.message) for said in warned(lambda: [one.train(50) for _ in range(4)])]
    timings = one.timings
    assert told == timings.storage_errors
    assert len(told) == 1
    assert "No space left" in told[0]
    assert timings.errors == []
    assert timings.dropped == 0
    assert len(timings) == 408
    whole = wb.open_run(timings.path).to_frame()
    assert whole.equals(timings.to_frame()[: len(whole)])
    full.unlink()
    one.train(1)
    same(wb.open_run(timings.path), timings)


def test_a_folder_that_cannot_be_written_is_said_once(training, tmp_path, monkeypatch):
    """The run is in memory alone, and every figure of it is there."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "file" / "runs"))
    one = training()
    (told,) = warned(lambda: [one.train(2) for _ in range(3)])
    assert "not being written down" in str(told.message)
    assert len(one.timings.to_frame()) == 12
    assert not one.timings.collectives().empty


def test_a_disk_that_never_answers_is_waited_for_once():
    """The end of a cell waits for the disk a bounded time, the ends after it not at all."""
    from workbench.timings.keeper import Keeper

    answer = threading.Event()
    keeper = Keeper(lambda: answer.wait() and None, lambda text: None)
    assert not keeper.flush(0.2)
    before = time.monotonic()
    assert not keeper.flush(60)
    assert time.monotonic() - before < 30
    answer.set()
    keeper.close()


def test_what_the_disk_never_took_is_said_in_the_run(training, small_disk):
    """A run that ends on a full disk is a whole beginning, and says that more is missing."""
    one = training()
    one.train(4)
    with contextlib.suppress(OSError), (small_disk / "full").open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    warned(lambda: one.train(400))
    one.close()
    (small_disk / "full").unlink()
    with pytest.warns(UserWarning, match=r"full disk|did not take"):
        run = wb.open_run(one.timings.path)
    found = run.to_frame()
    assert 8 <= len(found) < 808
    assert found.equals(one.timings.to_frame()[: len(found)])


def test_a_run_that_was_removed_says_so(ended):
    """A run that is gone since it was opened is not an empty one."""
    run = wb.open_run(ended.path)
    shutil.rmtree(ended.path)
    with pytest.raises(RunError, match="is gone"):
        run.to_frame()


# two runs side by side


def test_two_runs_are_compared_figure_by_figure(training):
    """Each figure of both, their difference and its uncertainty; clear where it is larger."""
    first, second = training("first"), training("second")
    first.train(20)
    second.train(20, exposed=6)
    a, b = wb.open_run(first.timings.path), second.timings
    found = a.compare(b)
    assert found.names == (a.name, b.path.name)
    assert (found.iterations, found.ranks) == ((20, 20), (2, 2))
    frame = found.to_frame().set_index("figure")
    assert frame.loc["exposed_us", ["a", "b", "difference"]].tolist() == [4000, 6000, 2000]
    assert frame.loc["exposed_us", "clear"]
    assert frame.loc["forward_us", "difference"] == 0
    assert not frame.loc["forward_us", "clear"]


def test_the_uncertainty_of_a_difference_holds_for_noise(training):
    """Of runs that differ by noise alone, nearly all differences are within their uncertainty."""
    from workbench.timings.arrivals import ALIGNED
    from workbench.timings.compare import compare

    noise = np.random.default_rng(1)

    def rows():
        found = np.zeros(200, dtype=ALIGNED)
        found["iteration"] = np.arange(200)
        found["iteration_ns"] = noise.normal(20 * MS, MS, 200)
        found["world_size"] = 1
        return found

    clear = [
        next(d for d in compare(rows(), rows(), ("a", "b")).differences).clear for _ in range(200)
    ]
    assert 1 <= sum(clear) <= 25  # 5 % of 200 are expected


def test_a_comparison_needs_two_runs(training):
    """A run without an iteration is named."""
    one, other = training("one"), training("other")
    one.train(2)
    with pytest.raises(UsageError, match=r"other.*has no iteration"):
        one.timings.compare(other.timings)


def test_the_first_iteration_of_a_cell_is_not_compared(training):
    """It allocates and warms up, as in the summary."""
    one, other = training("one"), training("other")
    one.train(3)
    other.train(1, exposed=100, flags=Flag.FIRST_OF_CELL)
    other.train(3)
    assert one.timings.compare(other.timings).iterations == (3, 3)


# a real cluster

CELL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_a_cluster_leaves_its_run():
    """What a real training took is opened by the cluster's name after its end."""
    from workbench.cluster import TextSink

    with wb.Cluster(n=2) as cluster:
        cluster.run(CELL, sink=TextSink())
        assert wb.open_run(cluster.name).state == "running"
        pids = [info.pid for info in cluster.ranks]
    run = wb.open_run(cluster.name)
    # who waited is told by clocks, which are known better since the rows were written
    on_disk, in_memory = (one.to_frame().drop(columns="wait_us") for one in (run, cluster.timings))
    assert on_disk.equals(in_memory)
    assert run.collectives().equals(cluster.timings.collectives())
    assert (run.state, run.iterations, run.problems) == ("ended", 6, [])
    assert [rank["pid"] for rank in run.ranks] == pids
    assert len(run.collectives()) == 2 * 6 * 4
