"""What a run answers, and where it is."""

import time

import pytest
from clusters import quiet, training
from recorded_training import RANKS, layout, same
from timers import eventually

import workbench as wb


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
    """A number that means other tensors after the ring was rebuilt is distinguished."""
    one = training()
    one.train(2)
    one.timings.begin_ring()
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
        time.sleep(1.1)  # a run's name has seconds
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
    """By default the folder is the user's own, which nobody else may read."""
    monkeypatch.delenv("GRADIENT_WORKBENCH_RUNS")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    path = training().train(1).path
    assert path.parent == tmp_path / expected
    assert path.stat().st_mode & 0o077 == 0


# a real cluster


@pytest.mark.slow
def test_a_cluster_leaves_its_run():
    """What a real training took is opened by the cluster's name after its end."""
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, training(6))
        assert eventually((cluster.timings.path / "run.json").exists)
        assert wb.open_run(cluster.name).state == "running"
        assert eventually(lambda: cluster.timings.clocks.current.ranks == [0, 1])
        pids = [info.pid for info in cluster.ranks]
    assert eventually(lambda: [run.state for run in wb.list_runs()] == ["ended"])
    run = wb.open_run(cluster.name)
    # who waited too: all ranks of one machine read its clock, about which pings report nothing new
    assert run.to_frame().equals(cluster.timings.to_frame())
    assert run.stragglers().equals(cluster.timings.stragglers())
    assert run.collectives().equals(cluster.timings.collectives())
    assert (run.state, run.iterations, run.problems) == ("ended", 6, [])
    assert [rank["pid"] for rank in run.ranks] == pids
    assert len(run.collectives()) == 2 * 6 * 2
