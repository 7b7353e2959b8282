"""The magics in a real kernel: what a notebook shows, streams and refuses."""

import psutil
import pytest
from clusters import training, waiting_for
from kernels import start_kernel
from timers import FAR_S, eventually

TRAINING = f"%%distributed\n{training(5)}"


class Notebook:
    """Cells run in a real kernel; outputs as a front end gets them."""

    def __init__(self):
        self.manager, self.client = start_kernel()
        self.pid = self.manager.provisioner.pid

    def send(self, source):
        return self.client.execute(source)

    def outputs(self, request, timeout=FAR_S):
        """Yield (message type, content) of a request until its cell has ended."""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            if kind in {"stream", "display_data", "execute_result", "error", "clear_output"}:
                yield kind, content

    def run(self, source):
        """Run a cell: its stream text, its displays' bundles, and its error's lines or None."""
        text, bundles, error = "", [], None
        cleared = False
        for kind, content in self.outputs(self.send(source)):
            if kind == "clear_output":  # with the next output, as a front end does
                cleared = True
                continue
            if cleared:
                text, bundles, cleared = "", [], False
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                error = content["traceback"]
            else:
                bundles.append(content["data"])
        return text, bundles, error

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A kernel with runs and calibrations of its own."""
    notebook, runs = Notebook(), str(tmp_path_factory.mktemp("runs"))
    notebook.run(f"import os\nos.environ['GRADIENT_WORKBENCH_RUNS'] = {runs!r}")
    notebook.run("%load_ext workbench")
    yield notebook
    notebook.stop()


@pytest.fixture(scope="module")
def started(notebook):
    _, bundles, error = notebook.run("cluster = %cluster start -n 2\ncluster")
    assert error is None
    assert "2 ranks, ready" in bundles[0]["text/html"]
    return notebook


def refused(notebook, source):
    """The one line that a cell is refused with; never a traceback of ours."""
    _, _, error = notebook.run(source)
    assert error is not None
    assert not any("workbench/" in line for line in error), error
    return "\n".join(error)


def test_without_a_cluster():
    """A magic that needs a cluster says how to start one."""
    notebook = Notebook()
    try:
        notebook.run("%load_ext workbench\nx = 1")
        for source in ("%%distributed\n1", "%cluster status", "%timings", "%push x", "%explain"):
            assert "%cluster start" in refused(notebook, source), source
    finally:
        notebook.stop()


def test_status_shows_every_rank(started):
    """The table has a row for each rank with its process and memory, as text too."""

    def shown_once_measured():
        _, bundles, _ = started.run("%cluster status")
        table, _, _ = bundles[0]["text/html"].partition("Warm process")
        return bundles[0] if table.count("MiB") == 2 else None

    bundle = eventually(shown_once_measured)
    assert bundle
    assert bundle["text/plain"].count("ready") == 3  # the cluster and both ranks


def test_starting_the_same_again_gives_the_running_one(started):
    """A notebook whose start cell is run again continues with its cluster."""
    _, bundles, error = started.run("again = %cluster start -n 2\nagain is cluster")
    assert error is None
    assert bundles[0]["text/plain"] == "True"
    assert "runs with 2" in refused(started, "%cluster start -n 3")


def test_a_cell_on_all_ranks(started):
    """Shared lines are folded, each rank's own are marked, values are shown."""
    text, _, error = started.run("%%distributed\nprint('hello')\nrank")
    assert error is None
    assert sorted(text.splitlines()) == ["[rank 0] 0", "[rank 1] 1", "[ranks 0-1] hello"]


def test_output_appears_while_the_cell_runs(started, tmp_path):
    """The first line is there before the cell ends, which waits until it was seen."""
    mark = tmp_path / "mark"
    cell = f"%%distributed --ranks 0 --timeout 100s\nprint('first')\n{waiting_for(mark)}"
    for kind, content in started.outputs(started.send(cell)):
        assert kind != "error", content
        if "first" in content.get("text", ""):
            mark.touch()
    assert mark.exists()


def test_rich_displays(started):
    """A value with an HTML form is shown with it, once for ranks that show the same."""
    _, bundles, _ = started.run(
        "%%distributed\nfrom IPython.display import HTML\nHTML('<b>bold</b>')"
    )
    assert [bundle["text/html"] for bundle in bundles if "text/html" in bundle] == ["<b>bold</b>"]


def test_an_error_stops_the_notebook_and_is_shown_once(started):
    """The cell fails, with the rank's own traceback and none of ours."""
    _, _, error = started.run("%%distributed\ndef f(): return 1/0\nf()")
    text = "\n".join(error)
    assert text.count("[ranks 0-1] ZeroDivisionError") == 1
    assert "workbench/cluster" not in text


def test_ranks_out_and_timeout(started):
    """--ranks chooses, --out keeps the result, --timeout ends the cell."""
    started.run("%%distributed --ranks 1 --out result\nrank + 40")
    _, bundles, _ = started.run("result.values")
    assert bundles[0]["text/plain"] == "{1: 41}"
    assert "not done after 1 s" in refused(
        started, "%%distributed --timeout 1\nimport time; time.sleep(600)"
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("%%distributed --ranks 7\n1", "numbered 0-1"),
        ("%%distributed --out 1x\n1", "not a valid Python name"),
        ("%%distributed --out class\n1", "not a valid Python name"),
        ("%%distributed --timeout -1\n1", "above 0"),
        ("%%distributed --bogus\n1", "--bogus"),
        ("%cluster dance", "dance"),
        ("%push nothing_here", "nothing_here"),
        ("%push hvd", "push hvd: the cluster sets 'hvd'"),
        ("%push", "%push: the following arguments are required"),
        ("%pull nothing_there", "nothing_there"),
        ("%timings sideways", "sideways"),
        ("%timings open", "%timings open NAME"),
        ("%timings open nothing-there", "no such run"),
        ("%timings live x", "accepts no argument"),
        ("%timings waterfall soon", "soon"),
        ("%timings ranks 3", "too many arguments"),
        ("%timings summary 3", "accepts no argument"),
    ],
)
def test_bad_input_is_refused_in_a_line(started, source, says):
    """The error names the request, the finding and the remedy, without a traceback."""
    assert says in refused(started, source)


def test_noblock(started, tmp_path):
    """The cell returns at once, its output follows in its own cell."""
    mark = tmp_path / "mark"
    request = started.send(f"%%distributed --noblock --out later\n{waiting_for(mark)}print('late')")
    assert list(started.outputs(request)) == []
    mark.touch()
    message = {"msg_type": None}
    while message["msg_type"] != "stream":
        message = started.client.get_iopub_msg(timeout=FAR_S)
    assert "late" in message["content"]["text"]
    assert message["parent_header"]["msg_id"] == request
    _, bundles, _ = started.run("later.result(timeout=45).output")
    assert bundles[0]["text/plain"] == repr("[ranks 0-1] late\n")


def test_figures_for_study(started):
    """Each verb of `%timings` shows a figure that JupyterLab draws without a network."""
    started.run(TRAINING)
    for source in ("%timings waterfall 3", "%timings ranks", "%timings collectives"):
        _, bundles, error = started.run(source)
        assert error is None
        assert bundles[-1]["application/vnd.plotly.v1+json"]["data"]


def test_the_fabric(started):
    """Before and after a calibration, which is a figure too; pairs are a heat table."""
    _, (bundle,), error = started.run("%fabric")
    assert error is None
    assert "This fabric was not calibrated" in bundle["text/html"]
    _, (bundle,), error = started.run("%fabric calibrate --seconds 1")
    assert error is None
    assert "application/vnd.plotly.v1+json" in bundle
    assert bundle["text/plain"].startswith("An allreduce on 2 ranks takes")
    _, (bundle,), error = started.run("%fabric matrix")
    assert error is None
    assert "One pair at a time" in bundle["text/html"]
    assert "one pair at a time" in bundle["text/plain"]


def test_push_and_pull(started):
    """Names go to the ranks and come back by rank."""
    started.run("numbers = [1, 2]\n%push numbers")
    started.run("%%distributed\nnumbers.append(rank)")
    started.run("%pull numbers")
    _, bundles, _ = started.run("numbers")
    assert bundles[0]["text/plain"] == "[[1, 2, 0], [1, 2, 1]]"


def test_runs_are_listed_opened_and_compared(started):
    """Earlier runs, and the one that runs, are tables with what they were and took."""
    _, _, error = started.run(TRAINING)
    assert error is None
    _, bundles, _ = started.run("cluster.timings.to_frame()['iteration'].nunique()")
    count = int(bundles[0]["text/plain"])
    assert count >= 5
    _, bundles, _ = started.run("%timings list")
    (line,) = [line for line in bundles[0]["text/plain"].splitlines() if "running" in line]
    name = line.split()[0]
    assert name in bundles[0]["text/html"]
    _, bundles, error = started.run(f"run = %timings open {name}\nrun")
    assert error is None
    assert f"running, {count} iterations on 2 ranks" in bundles[0]["text/plain"]
    assert "optimizer" in bundles[0]["text/html"]

    def shown(line):
        return started.run(line)[1][0]["text/plain"]

    assert eventually(lambda: "Verdict: " in shown(f"%timings open {name}"))
    (line,) = [line for line in shown("%timings list").splitlines() if line.startswith(name)]
    assert " per iteration" in line
    _, bundles, error = started.run(f"%timings compare {name}")
    assert error is None
    assert "within the spread" in bundles[0]["text/html"]
    _, bundles, _ = started.run("run.to_frame().shape[0]")
    assert bundles[0]["text/plain"] == str(2 * count)


def test_interrupting_the_kernel_frees_the_ranks(started):
    """The stop button ends a distributed cell, and the cluster is usable at once."""
    request = started.send("%%distributed\nimport time\nprint('begun')\ntime.sleep(600)")
    outputs = started.outputs(request)
    assert any("begun" in content["text"] for kind, content in outputs if kind == "stream")
    started.manager.interrupt_kernel()
    errors = [content for kind, content in outputs if kind == "error"]
    assert "interrupted" in errors[0]["evalue"]
    text, _, _ = started.run("%%distributed\nprint('usable')")
    assert text == "[ranks 0-1] usable\n"


def test_a_kernel_shut_down_leaves_nothing():
    """Closing the notebook ends its ranks."""
    notebook = Notebook()
    notebook.run("%load_ext workbench\n%cluster start -n 1")
    children = psutil.Process(notebook.pid).children(recursive=True)
    assert len(children) >= 2
    notebook.stop()
    _, alive = psutil.wait_procs(children, timeout=FAR_S)
    assert not alive
