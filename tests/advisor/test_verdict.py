"""The verdict of a cell: its line, its figures, and where they are stored."""

import json
import math

import pytest
from clusters import quiet, training
from recorded_training import MS, Training
from timers import eventually

import workbench as wb
from workbench.errors import RanksFailed, UsageError
from workbench.resources import Unknown
from workbench.widgets.runs import RunList, run_table
from workbench.wire import Flag


@pytest.fixture
def trained(tmp_path):
    """Train records over real channels, as ranks send them; `trained(iterations, ...)`."""
    begun = []

    def train(*cells, **options):
        one = Training(folder=tmp_path / "runs")
        begun.append(one)
        for iterations in cells:
            one.train(iterations, **options)
        return one

    yield train
    for one in begun:
        one.close()


def stored_of(run):
    return wb.open_run(run).stored_verdict


@pytest.mark.slow
def test_each_training_cell_leaves_its_verdict_with_the_run(cluster):
    """After its end, also after an error, and off its path; other cells change nothing."""
    quiet(cluster, training(70))
    path, timings = cluster.timings.path, cluster.timings
    assert eventually((path / "run.json").exists)
    assert eventually(lambda: stored_of(path) is not None)
    assert eventually(lambda: stored_of(path).cell == timings.newest_cell)
    first = stored_of(path)
    assert (first.ranks, first.last_iteration - first.first_iteration + 1) == (2, 64)
    assert first == timings.verdict == wb.verdict(cluster)
    assert (path / "verdict.json").stat().st_mode & 0o777 == 0o600
    data = json.loads((path / "verdict.json").read_text())
    assert data["version"] == 1
    assert data["text"] == str(first)
    assert [one["name"] for one in data["causes"]] == [one.name for one in wb.explain(cluster, 64)]
    with pytest.raises(RanksFailed):
        quiet(cluster, "train(3)\n1 / 0")
    assert eventually(lambda: timings.verdict.cell > first.cell)
    assert cluster._conclusions.wait()
    assert eventually(lambda: stored_of(path) == timings.verdict)
    failed = stored_of(path)
    assert failed.last_iteration - failed.first_iteration + 1 <= 64
    assert failed.first_iteration > first.last_iteration
    quiet(cluster, "1 + 1")
    assert cluster._conclusions.wait()
    assert timings.verdict == stored_of(path) == failed
    assert timings.storage_errors == []


def test_its_figures_are_those_of_the_cell(trained):
    """Only the newest iterations of the last cell count; the parts and medians are there."""
    one = trained(5, 100, exposed=4)
    verdict = wb.verdict(one.timings)
    assert (verdict.cell, verdict.first_iteration, verdict.last_iteration) == (2, 41, 104)
    assert verdict.iteration_us == verdict.median_us == 20_000
    assert verdict.exposed_share == pytest.approx(0.2)
    assert verdict.exposed_us == 4000
    assert verdict.text.startswith(
        "20 ms per iteration (iterations 41 to 104), 20 % of it exposed communication; first "
    )
    assert f"{verdict.causes[0].name} (" in verdict.headline
    assert verdict.headline + f"; change: {verdict.causes[0].change}" == str(verdict)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"world_size": 1},
            "20 ms per iteration (iterations 0 to 19) on one rank, without communication; ",
        ),
        (
            {"flags": Flag.UNHEARD},
            "20 ms per iteration (iterations 0 to 19), communication is not timed; ",
        ),
        (
            {"flags": Flag.FORWARD_UNSEEN, "forward_ns": 0, "backward_ns": 0, "other_ns": 13 * MS},
            "20 ms per iteration (iterations 0 to 19), its phases are unknown (a tf.function does ",
        ),
    ],
)
def test_what_is_not_known_is_said(trained, options, says):
    """One rank, communication without times, a compiled step."""
    verdict = wb.verdict(trained(20, exposed=4, **options).timings)
    assert verdict.text.startswith(says)
    for figure in (verdict.exposed_us, verdict.waiting_us, verdict.samples_per_s):
        assert isinstance(figure, Unknown) or math.isfinite(figure)


def test_nothing_worth_a_change_is_said(trained):
    """Communication that is hidden, and no data that is waited for."""
    verdict = wb.verdict(trained(20, exposed=0, data_ns=0).timings)
    assert str(verdict).endswith("; nothing visible here slows it down by 1 % or more")
    assert verdict.causes == ()


def test_without_an_iteration_there_is_no_verdict(trained):
    """As for `explain`, the error says what to do."""
    with pytest.raises(
        UsageError, match=r"Nothing to explain: .*No optimizer stepped in a %%distributed cell"
    ):
        wb.verdict(trained().timings)


def test_a_run_without_a_stored_verdict_is_judged_when_asked(trained):
    """A run of an earlier version, or of a kernel that was killed."""
    one = trained(20)
    one.close()
    run = wb.open_run(one.timings.path)
    assert run.stored_verdict is None
    assert wb.verdict(run) == wb.verdict(one.timings)


def test_a_stored_verdict_of_an_earlier_cell_is_not_that_of_the_run(trained):
    """While the last cell goes on, and if its kernel ended before its verdict was stored."""
    one = trained(20)
    first = wb.verdict(one.timings)
    one.timings.conclude(first)
    assert eventually(lambda: stored_of(one.timings.path) == first)
    one.train(30)
    assert eventually(lambda: len(wb.open_run(one.timings.path)) == 2 * 50)
    assert stored_of(one.timings.path) is None
    one.close()
    run = wb.open_run(one.timings.path)
    assert (run.facts["newest_cell"], run.stored_verdict) == (2, None)
    assert wb.verdict(run) == wb.verdict(one.timings) != first
    assert "none stored" in repr(RunList([run]))
    assert "Verdict" not in repr(run_table(run))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "verdict.json: "),
        ("[]", "verdict.json: a verdict of version None: only version 1 can be read."),
        ('{"version": 99}', "verdict.json: a verdict of version 99: only version 1"),
        ('{"version": 1}', "verdict.json: a damaged verdict: text is missing"),
        ('{"version": 1, "text": 7}', "verdict.json: a damaged verdict: text: expected"),
    ],
)
def test_a_verdict_that_cannot_be_read_is_a_problem_of_the_run(trained, text, says):
    """The run is readable all the same, and is judged again."""
    one = trained(20)
    one.timings.conclude(wb.verdict(one.timings))
    one.close()
    (one.timings.path / "verdict.json").write_text(text)
    run = wb.open_run(one.timings.path)
    assert run.stored_verdict is None
    assert any(problem.startswith(says) for problem in run.problems), run.problems
    assert wb.verdict(run) == one.timings.verdict


def test_a_removed_run_leaves_no_verdict(trained):
    """The file belongs to the run, and a kernel that attaches shows it again."""
    one = trained(20)
    one.timings.conclude(wb.verdict(one.timings))
    path, state = one.timings.path, one.timings.to_state()
    one.close()
    assert stored_of(path) == one.timings.verdict
    later = Training(state=state)
    assert later.timings.verdict == one.timings.verdict
    later.close()
    assert wb.open_run(path)._folder.remove()
    assert not path.exists()
