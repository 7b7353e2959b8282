"""``%timings off``, ``on`` and ``overhead`` in a real kernel, and what views then show."""

import time

import pytest
from clusters import training
from test_magics import Notebook, refused

TRAIN = f"%%distributed\n{training(5)}"
OFF = "Recording is off: switch it on with %timings on."
NOT_RECORDED = "The last cell was not recorded."
EARLIER = "All figures are of earlier cells."
STATE = "from workbench.widgets.panel import describe; print(describe(cluster)['message'])"


@pytest.fixture(scope="module")
def started():
    notebook = Notebook()
    notebook.run("%load_ext workbench")
    _, _, error = notebook.run("cluster = %cluster start -n 2 --no-record")
    assert error is None
    yield notebook
    notebook.stop()


def all_of(notebook, source):
    """Everything that a cell shows, as text; it must not fail."""
    text, bundles, error = notebook.run(source)
    assert error is None, error
    shown = [str(value) for bundle in bundles for value in bundle.values()]
    return "\n".join([text, *shown])


def plain(notebook, source):
    """What a cell shows as text only."""
    text, bundles, error = notebook.run(source)
    assert error is None, error
    return "\n".join([text, *(bundle["text/plain"] for bundle in bundles)])


def test_a_cluster_that_starts_without_recording(started):
    """Each view says so and how to record, also after a training; nothing is explained."""
    for source in ("", TRAIN):
        if source:
            all_of(started, source)
        for view in ("%timings", "%timings summary", "%timings table", "%cluster", STATE):
            assert OFF in plain(started, view), view
        assert OFF in refused(started, "%explain --all")
    assert "last cell was not recorded. Switch recording on with %timings on" in refused(
        started, "%explain"
    )
    text, _, error = started.run("%timings waterfall")
    assert OFF in text
    assert error is not None


def test_off_and_on(started):
    """Figures of earlier cells are never those of a cell that was not recorded."""
    assert "on from the next cell" in all_of(started, "%timings on")
    all_of(started, TRAIN)
    for view in ("%timings", "%timings summary", "%timings table", "%cluster", "%explain", STATE):
        assert "ecording is off" not in all_of(started, view)
        assert NOT_RECORDED not in all_of(started, view)
    assert "Switch it on with %timings on" in all_of(started, "%timings off")
    for view in ("%timings", "%timings summary", "%timings table", "%explain", "%cluster", STATE):
        shown = all_of(started, view)
        assert OFF in shown
        assert NOT_RECORDED not in shown  # the figures are still those of the last cell
    all_of(started, TRAIN)
    for view in (
        *("%timings", "%timings summary", "%timings table", "%timings ranks", "%cluster"),
        *("%timings waterfall", "%timings collectives", "%explain --all", STATE),
    ):
        shown = all_of(started, view)
        assert f"{OFF} {NOT_RECORDED} {EARLIER}" in shown, view
    assert "last cell was not recorded" in refused(started, "%explain")
    all_of(started, "%timings on")
    for view in ("%timings", "%timings summary", "%timings table"):
        assert f"{NOT_RECORDED} Run it again to record it. {EARLIER}" in all_of(started, view)
    all_of(started, TRAIN)
    assert NOT_RECORDED not in all_of(started, "%timings summary")


def test_starting_the_same_again(started):
    """A cluster that records is not returned where one without recording is wanted."""
    all_of(started, "%timings on")
    assert "Switch that off with %timings off" in refused(started, "%cluster start --no-record")
    all_of(started, "%timings off")
    assert "ready" in plain(started, "%cluster start --no-record")
    all_of(started, "%timings on")


def test_overhead(started):
    """The sentence has an interval; the cell of the magic is measured if it has one."""
    all_of(started, TRAIN)
    shown = plain(started, "%timings overhead --pairs 3")
    assert "its model continues to train" in shown
    assert "Measuring: pair 3 of 3" in shown
    assert " ms, 3 pairs." in shown
    assert "divided by its 5 iterations" in shown
    shown = plain(started, "%%timings overhead --pairs 3 --timeout 2m\ntrain(4)")
    assert "divided by its 4 iterations" in shown


@pytest.mark.parametrize("after_s", [0, 0.6])
def test_the_stop_button(started, after_s):
    """It ends the measurement within seconds; recording is as before, and the cluster is ready."""
    all_of(started, "%timings off")
    request = started.send("%%timings overhead --pairs 900\ntrain(2)\nimport time; time.sleep(0.4)")
    outputs = started.outputs(request)
    assert any("pair 1 of" in content["text"] for kind, content in outputs if kind == "stream")
    time.sleep(after_s)
    started.manager.interrupt_kernel()
    errors = [content for kind, content in outputs if kind == "error"]
    assert [one["ename"] for one in errors] == ["CellInterrupted"]
    assert all_of(started, "print(cluster.state, cluster.recording)").startswith("ready False")
    all_of(started, "%timings on")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("%timings on now", "%timings on now: on accepts no argument. Remove it."),
        ("%timings summary --pairs 3", "--pairs and --timeout are for overhead. Remove them."),
        ("%%timings\nx = 1", "only overhead has a cell"),
        ("%timings overhead --pairs 1", "pairs=1: must be an integer of 3 or more."),
        ("%cluster --no-record", "without a verb"),
    ],
)
def test_lines_that_do_not_fit(started, source, says):
    """They are refused with what to write instead."""
    assert says in refused(started, source)


def test_help(started):
    """``%timings?`` describes the switch and the measurement."""
    from workbench.magics import WorkbenchMagics

    text = WorkbenchMagics.timings.__doc__
    for words in ("%timings off", "%timings on", "%timings overhead", "--pairs", "--timeout"):
        assert words in text
