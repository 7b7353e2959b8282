"""`%cluster interrupt` and its method: the stop button for cells in the background."""

import time

import pytest
from clusters import BeginSink, quiet, waiting_for
from run_notebook import error_of, opened, text_of
from test_stop_button import ASK, STUBBORN, TRAIN, end, stops, usable  # noqa: F401 - a fixture
from timers import eventually, later

from workbench.cluster import TextSink
from workbench.cluster.stuck_ranks import StuckRankMonitor
from workbench.errors import CellInterrupted, ClusterError, UsageError


@pytest.fixture
def kept(cluster):
    """The cluster, whose ranks have a variable each."""
    quiet(cluster, "kept = rank * 10")
    yield cluster
    if not eventually(lambda: cluster.state == "ready"):
        cluster.restart()


def begun(cluster, source, **options):
    """A cell in the background that runs already on its ranks, with its output."""
    sink = BeginSink()
    run = cluster.run_in_background(sink.PRINT + source, sink=sink, **options)
    assert eventually(lambda: sink.begun(1 if options else 2))
    time.sleep(0.3)
    return run, sink


@pytest.mark.parametrize("source", [TRAIN, "import time; time.sleep(600)"], ids=["train", "sleep"])
@pytest.mark.parametrize("by", ["cluster", "run"])
def test_a_cell_in_the_background(kept, source, by):
    """It ends as with the stop button, and variables are kept."""
    run, _ = begun(kept, source)
    if by == "run":
        assert run.interrupt()
    else:
        assert kept.interrupt() == (0, 1)
    with pytest.raises(CellInterrupted, match=r"on ranks 0-1; .* variables are kept"):
        run.result(100)
    assert kept.state == "ready"
    assert usable(kept)
    assert not run.interrupt()


def test_only_its_ranks(kept):
    """A cell on some ranks names them."""
    run, _ = begun(kept, "import time; time.sleep(600)", ranks="1")
    assert kept.interrupt() == (1,)
    with pytest.raises(CellInterrupted, match="on rank 1;"):
        run.result(100)
    assert usable(kept)


def test_the_cells_behind_it_go_on(kept):
    """As with the stop button only one cell ends."""
    run, _ = begun(kept, "import time; time.sleep(600)")
    behind = [kept.run_in_background(f"{i}", sink=TextSink()) for i in range(2)]
    kept.interrupt()
    with pytest.raises(CellInterrupted):
        run.result(100)
    assert [one.result(100).values for one in behind] == [{0: i, 1: i} for i in range(2)]


def test_a_cell_that_waits_in_the_queue(kept, tmp_path):
    """It leaves the queue at once and never runs; the one before it and the next one do."""
    go_on = tmp_path / "go on"
    first, _ = begun(kept, f"{waiting_for(go_on)}'first'")
    waits = kept.run_in_background("ran = True", sink=TextSink())
    last = kept.run_in_background("globals().get('ran')", sink=TextSink())
    assert waits.interrupt()
    with pytest.raises(CellInterrupted, match="while it waited"):
        waits.result(100)
    assert not first.done()
    go_on.touch()
    assert first.result(100).values[0] == "first"
    assert last.result(100).values == {0: None, 1: None}


def test_a_foreground_cell_that_waits_behind_it(kept):
    """It continues; when interrupted itself, it reports how to end the other."""
    run, _ = begun(kept, "import time; time.sleep(600)")
    with stops(1.5), pytest.raises(CellInterrupted, match="%cluster interrupt"):
        quiet(kept, "1")
    with later(0.5, kept.interrupt):
        assert quiet(kept, ASK).values[1] == (10, 2.0)
    with pytest.raises(CellInterrupted):
        run.result(100)


def test_a_foreground_cell_from_another_thread(kept):
    """The method does what the stop button does for a cell that this thread waits for."""
    with later(0.5, kept.interrupt), pytest.raises(CellInterrupted):
        quiet(kept, "import time; time.sleep(600)")
    assert usable(kept)


def test_nothing_runs(kept):
    """One line; before, after a stop, and of a cell that has ended."""
    with pytest.raises(UsageError, match=r"Nothing to interrupt: no cell runs"):
        kept.interrupt()
    run = kept.run_in_background("1", sink=TextSink())
    run.result(100)
    assert not run.interrupt()
    with pytest.raises((UsageError, ClusterError), match="Nothing to interrupt"):
        kept.interrupt()


def test_twice(kept):
    """The second hurries, and destroys nothing."""
    run, _ = begun(kept, "import time\ntry: time.sleep(600)\nfinally: time.sleep(8)")
    kept.interrupt()
    time.sleep(0.5)
    kept.interrupt()
    with pytest.raises(CellInterrupted, match="variables are kept"):
        run.result(100)
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_code_that_catches_it(kept, end):  # noqa: F811 - a fixture
    """The message says what the rank does; it is used again, also after a second interrupt."""
    run, _ = begun(kept, STUBBORN.format(end=str(end)))
    kept.interrupt()
    with pytest.raises(CellInterrupted, match="rank 1 has caught the interrupt and goes on"):
        run.result(100)
    assert kept.state == "failed"
    assert kept.interrupt() == (1,)
    end.touch()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_a_left_rank_ends_by_another_interrupt(kept):
    """A rank that was left and still runs its cell is interrupted there."""
    source = """
import time
if rank == 1:
    try: time.sleep(600)
    except KeyboardInterrupt: time.sleep(600)
"""
    run, _ = begun(kept, source)
    kept.interrupt()
    with pytest.raises(CellInterrupted, match="goes on"):
        run.result(100)
    kept.interrupt()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_a_left_rank_is_interrupted_while_it_is_left(kept):
    """An interrupt between the end of the cell and the moment at which it is left is not lost."""
    source = """
import time
if rank == 1:
    try: time.sleep(600)
    except KeyboardInterrupt: time.sleep(600)
"""
    unsubscribe = kept.subscribe(lambda: kept.interrupt() if kept.state == "failed" else None)
    run, _ = begun(kept, source)
    kept.interrupt()
    with pytest.raises(CellInterrupted, match="goes on"):
        run.result(100)
    unsubscribe()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_ranks_may_end_while_they_are_interrupted():
    """A rank that ends the cell in another thread changes the set that is iterated."""
    running = {0, 1, 2}
    StuckRankMonitor(1, lambda rank, _: running.discard(rank)).interrupt(running)
    assert not running


def test_cancel_does_not_break_the_run(kept):
    """The method of every future: a cell that is queued cannot be taken back by it."""
    run = kept.run_in_background("import time; time.sleep(0.5); 7", sink=TextSink())
    assert not run.cancel()
    assert run.result(100).values == {0: 7, 1: 7}


@pytest.mark.soak
def test_in_a_notebook(tmp_path):
    """The magic interrupts what --noblock started; if nothing runs, one line says that."""
    with opened("%cluster start -n 2") as notebook:
        error = error_of(notebook.run("%cluster interrupt"))
        assert "Nothing to interrupt" in error
        assert len(error.splitlines()) == 1
        mark = tmp_path / "begun"
        begin = f"import pathlib, time\nkept = rank\npathlib.Path({str(mark)!r}).touch()"
        notebook.run(f"%%distributed --noblock --out result\n{begin}\ntime.sleep(600)")
        assert eventually(mark.exists)
        time.sleep(0.5)
        cell = notebook.run("%cluster interrupt")
        assert "Interrupting the cell on ranks 0-1." in text_of(cell)
        said = notebook.run("type(result.exception(100)).__name__")
        assert "CellInterrupted" in said.outputs[-1].data["text/plain"]
        cell = notebook.run("%%distributed\nkept")
        assert not error_of(cell)
        help_text = text_of(notebook.run("print(get_ipython().find_line_magic('cluster').__doc__)"))
        assert "%cluster interrupt" in help_text
        assert "interrupt" in help_text.partition("positional arguments")[2]
