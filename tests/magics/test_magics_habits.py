"""Magics accept or explain the input of people who have not read the manual."""

import itertools
import json
import re

import nbconvert
import pytest
from clusters import training
from jupyter_core.utils import run_sync
from run_notebook import error_of, opened, text_of, values_of
from timers import FAR_S

import workbench as wb
from workbench.cli import main
from workbench.errors import COLOURS
from workbench.widgets.rank_figures import ranks_figure

MORE = "train(7)"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    runs = str(tmp_path_factory.mktemp("runs"))
    with opened(f"import os\nos.environ['GRADIENT_WORKBENCH_RUNS'] = {runs!r}") as notebook:
        yield notebook


@pytest.fixture(scope="module")
def trained(notebook):
    """A cluster that has trained in two cells, and run one without training since."""
    for source in (
        "cluster = %cluster start -n 2",
        f"%%distributed\n{training(30)}",
        f"%%distributed\n{MORE}",
        "%%distributed\nprint('no training')",
    ):
        assert not error_of(notebook.run(source))
    return notebook


def test_a_bare_cluster_says_that_none_runs():
    """The status also says how to start one; that is no error."""
    with opened(fresh=True) as notebook:
        cell = notebook.run("%cluster")
    assert not error_of(cell)
    assert "%cluster start" in values_of(cell)


def test_a_bare_cluster_shows_the_status(trained):
    """The same table as `%cluster status`; an option without its verb is refused."""
    assert values_of(trained.run("%cluster")).count("ready") == 3
    assert "Write one of start" in error_of(trained.run("%cluster -n 3"))
    assert len(error_of(trained.run("%cluster -n 3")).splitlines()) == 1


def test_help_lists_the_content_of_the_namespace(trained):
    """`%%distributed?` names all that a rank's cell finds."""
    text = trained.run(
        "import io, contextlib\nprint(get_ipython().find_cell_magic('distributed').__doc__)"
    )
    for name in ("hvd", "rank", "local_rank", "world_size", "device"):
        assert f"`{name}`" in text_of(text)
    for name in ("hvd", "rank", "local_rank", "world_size", "device"):
        assert not error_of(trained.run(f"%%distributed\n{name}"))


@pytest.mark.parametrize("timeout", ["1s", "1", "1000ms", "0.5", "'1s'"])
def test_a_timeout_as_any_duration(trained, timeout):
    """--timeout reads what --keep reads."""
    error = error_of(
        trained.run(f"%%distributed --timeout {timeout}\nimport time; time.sleep(600)")
    )
    assert error.startswith("CellTimeout")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("%%distributed --timeout 1x\n1", "timeout='1x': not a duration. Write"),
        ("%%distributed --timeout 0\n1", "above 0"),
        ("%%distributed --ranks 1-0\n1", "backwards. Write it as 0-1"),
        ("%%distributed --out 3x\n1", "--out 3x: not a valid Python name."),
        ("%cluster dance", "dance"),
        ("%cluster start -n 0", "must be a positive integer"),
        ("%explain --all --latest 3", "exclude each other"),
        ("%explain --latest 0", "positive integer"),
        ("%explain no-such-run", "no such run"),
        ("%timings ranks no-such-run", "no such run"),
        ("%timings waterfall 3 4", "too many arguments"),
        ("%timings collectives a b", "too many arguments"),
        ("%fabric scaling", "only scaling runs a cell. Write %%fabric scaling --ranks 1,2,4"),
        ("%%fabric calibrate\n1", "only scaling runs a cell"),
        ("%%fabric scaling\n1", "--ranks must be numbers of ranks. Write --ranks 1,2,4."),
        ("%%fabric scaling --ranks 0\n1", "--ranks must be numbers of ranks"),
        ("%fabric show --ranks 1,2", "--ranks and --label are for scaling"),
        ("%fabric show --save x.json", "--gbps and --save are for scaling"),
        ("%fabric show --repeats 3", "--repeats is for scaling. Remove it."),
        ("%%fabric scaling --ranks 1 --gbps fast\n1", "argument --gbps"),
        ("%%fabric scaling --ranks 1 --gbps -1\n1", "nominal_gbps=-1.0: not the rate of a link"),
        ("%fabric compare a.json", "compare needs two files"),
        ("%fabric show a.json b.json", "no other verb accepts two"),
        ("%fabric compare a.json b.json", "a.json: not a scaling study"),
        ("%fabric show --stored", "--seconds and --stored are for calibrate"),
        ("%fabric matrix name", "matrix accepts no name. Remove name."),
        ("%fabric show no-such-file", "no-such-file"),
    ],
)
def test_a_mistake_is_one_line(trained, source, says):
    """The error names the argument, the problem, and the remedy."""
    error = error_of(trained.run(source))
    assert says in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "source",
    [
        "%timings summary  # of the last cell",
        "%%distributed --ranks 0   # only the first\nprint(1)",
        "%cluster status # 2 ranks",
    ],
)
def test_a_comment_after_a_magic_is_no_argument(trained, source):
    assert not error_of(trained.run(source))


def test_a_quoted_number_sign_is_part_of_a_name(trained):
    error = error_of(trained.run("%timings open '#7 of # runs'  # no such run"))
    assert "#7 of # runs" in error


def test_a_cell_is_run_at_several_sizes(trained):
    """`%%fabric scaling` shows the efficiency, and the cluster has its ranks again."""
    cell = trained.run(f"%%fabric scaling --ranks 1,2 --label here\n{training(30)}")
    assert not error_of(cell)
    assert re.search(r"here: .*\n.*efficiency(\n +[12] .*\d+%.*){2}", values_of(cell))
    assert values_of(trained.run("cluster.n")) == "2"
    for source in (f"%%distributed\n{training(30)}", "%%distributed\nprint('no training')"):
        assert not error_of(trained.run(source))


def matches(notebook, code):
    """What the kernel offers at the end of a cell."""

    async def ask():
        return await notebook.client.kc.complete(code, len(code), reply=True, timeout=FAR_S)

    return run_sync(ask)()["content"]["matches"]


def test_magics_complete(trained, tmp_path):
    """Verbs, options and their values, hosts of the ssh configuration, and names of runs."""
    assert matches(trained, "%cluster st") == ["start", "status", "stop"]
    assert "--hosts" in matches(trained, "cluster = %cluster start --h")
    assert matches(trained, "%%distributed --no") == ["--noblock"]
    assert matches(trained, "%cluster start --backend h") == ["horovod"]
    assert "compare" in matches(trained, "%fabric co")
    config = tmp_path / "config"
    config.write_text("Host vm1 vm2\n Port 22\nHost *\nHost other\n")
    line = f"%cluster start --ssh-config {config} --hosts vm1:2,v"
    assert matches(trained, line) == ["vm1", "vm2"]
    name = values_of(trained.run("import workbench as wb\nwb.list_runs()[0].name")).strip("'")
    for line in (
        "%explain ",
        "%explain --all ",
        "%timings open ",
        "%timings compare ",
        "%fabric whatif ",
    ):
        assert name in matches(trained, line + name[:3])
    listeners = "from workbench.cluster import registry\nlen(registry._listeners)"
    before = values_of(trained.run(listeners))
    assert not error_of(trained.run("%reload_ext workbench"))
    assert values_of(trained.run(listeners)) == before
    assert matches(trained, "%cluster sta") == ["start", "status"]


def test_names_of_the_ranks_complete(trained):
    """While the ranks are busy, too; names of the notebook are neither needed nor changed."""
    assert not error_of(trained.run("%%distributed\nimport torch as pytorch_of_ranks\nmany_9 = 1"))
    busy = "%%distributed --noblock --out done\nimport time\ntime.sleep(600)"
    assert not error_of(trained.run(busy))
    assert "pytorch_of_ranks" in matches(trained, "%%distributed\nx = pytorch_of")
    assert "many_10" in matches(trained, "%%distributed\nmany_10 = 2\nprint(many_")
    assert "many_9" in matches(trained, "%%distributed\nmany_10 = 2\nprint(many_")
    assert "world_size" in matches(trained, "%%distributed\nworld")
    assert "many_9" not in matches(trained, "many_")
    assert values_of(trained.run("'many_9' in globals()")) == "False"
    assert not error_of(trained.run("%cluster interrupt"))
    trained.run("try:\n    done.result()\nexcept wb.WorkbenchError:\n    pass")
    assert not error_of(trained.run("%%distributed\nprint('no training')"))


def test_a_question_mark_shows_the_docstring_on_the_ranks(trained):
    """`name?` in a cell shows it, and `name??` the source, of what only the ranks have."""
    own = "def own(a, b=2):\n    'Add two numbers of mine.'\n    return a + b"
    assert not error_of(trained.run(f"%%distributed\n{own}"))

    def shown(cell):
        return COLOURS.sub("", text_of(trained.run(cell)))

    assert "[ranks 0-1] Signature: own(a, b=2)\n" in shown("%%distributed\nown?")
    assert "[ranks 0-1] Docstring: Add two numbers of mine.\n" in shown("%%distributed\nown?")
    assert "[rank 0]     return a + b\n" in shown("%%distributed --ranks 0\nown??")
    assert "not found" in shown("%%distributed\nnever_there?")
    assert not error_of(trained.run("%%distributed\nprint('no training')"))


def test_explain_is_about_the_last_training(trained):
    """The last cell that recorded iterations, unless all or a number of them is named."""
    for source in ("%explain --all", "%explain --latest 3", "%explain"):
        assert not error_of(trained.run(source))


def test_explain_says_if_the_last_cell_has_no_iterations(trained):
    """A training loop without an optimizer is not explained with another cell's figures."""
    by_hand = "%%distributed\nimport torch\nhvd.allreduce(torch.ones(3), name='by hand')"
    earlier = "recorded no iteration (no optimizer.step() ran)"
    assert not error_of(trained.run(by_hand))
    explained = values_of(trained.run("%explain"))
    assert earlier in explained
    assert explained.endswith("All figures are of earlier cells.")
    assert earlier not in values_of(trained.run("%explain --all"))
    assert not error_of(trained.run("%%distributed\nprint('no training')"))
    assert earlier not in values_of(trained.run("%explain"))


def test_a_stored_run_has_figures_and_causes(trained):
    """Every view of a cluster's timings is there for a run on disk, which needs no cluster."""
    name = values_of(trained.run("import workbench as wb\nwb.list_runs()[0].name")).strip("'")
    for source in (
        f"%timings waterfall {name}",
        f"%timings waterfall 3 {name}",
        f"%timings waterfall {name} 3",
        f"%timings ranks {name}",
        f"%timings collectives {name}",
        f"%explain {name}",
        f"%explain {name} --all",
        f"wb.explain(wb.open_run({name!r}))",
        "wb.explain(cluster.timings)",
        "wb.explain(cluster)",
    ):
        assert not error_of(trained.run(source)), source
    assert "not a training" in error_of(trained.run("wb.explain(3)"))


def test_figures_are_in_an_exported_page(trained):
    """An exported HTML page has each figure as a picture, with its values in a table."""
    for source in ("%timings waterfall", "%timings ranks", "%timings collectives"):
        cell = trained.run(source)
        assert cell.outputs[-1].data["application/vnd.plotly.v1+json"]["data"]
        picture = cell.outputs[-1].data["text/html"]
        assert "<svg" in picture
        assert "<script" not in picture
        assert "<table" in picture
        assert len(picture) < 200_000
    page, _ = nbconvert.HTMLExporter().from_notebook_node(trained.node)
    assert page.count('role="img"') >= 3


def test_a_picture_lies_where_the_values_are(trained):
    """The median of each rank's box is drawn at its value, on the axis with its numbers."""
    folder = text_of(trained.run("print(wb.list_runs()[0].path)")).strip()
    figure = ranks_figure(wb.open_run(folder))
    from workbench.widgets.static_figure import static_html

    picture = static_html(figure, "by rank")
    median = figure.data[0].median[0]
    ticks = [(0.0, 0.0)]
    for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([\d.,]+)</text>', picture):
        if float(x) < ticks[-1][1] or (ticks[-1][1] and float(text.replace(",", "")) == 0):
            break  # the second panel has ticks of its own
        ticks.append((float(text.replace(",", "")), float(x)))
    (zero, at_zero), (top, at_top) = ticks[1], ticks[-1]
    drawn = at_zero + (median - zero) * (at_top - at_zero) / (top - zero)
    lines = [float(x) for x in re.findall(r'<line x1="([\d.]+)"', picture)]
    assert min(abs(x - drawn) for x in lines) < 0.2
    assert f"{median:,.3f}" in picture


def test_a_cell_whose_output_is_captured(trained):
    """`%%capture` above `%%distributed` keeps the output, also while a live view is open."""
    trained.run("%timings")
    captured = trained.run("%%capture kept\n%%distributed\nprint('hello from', rank)")
    assert not captured.outputs
    shown = text_of(trained.run("print(kept.stdout + kept.stderr)"))
    assert "hello from 1" in shown
    assert "Error" not in shown


def test_resources_takes_a_file(tmp_path, capsys):
    """`workbench resources FILE` shows the VM of a file, as `doctor FILE` does."""
    assert main(["resources", "--json"]) == 0
    path = tmp_path / "vm.json"
    path.write_text(capsys.readouterr().out)
    assert main(["resources", str(path)]) == 0
    shown = capsys.readouterr().out
    assert main(["resources", "--file", str(path)]) == 0
    assert capsys.readouterr().out == shown
    assert main(["resources", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    assert main(["resources", str(path), str(path)]) == 1
    assert "workbench doctor" in capsys.readouterr().err
    assert main(["resources", str(path), "--file", str(path)]) == 1
    assert main(["resources", str(tmp_path / "none.json")]) == 1


def test_the_doctor_speaks_json(tmp_path, capsys):
    """Findings by VM with all their fields, and what differs between VMs; the usual status."""
    status = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    (findings,) = found["vms"].values()
    assert found["across_vms"] == []
    assert status == any(one["severity"] == "error" for one in findings)
    for one in findings:
        assert set(one) == {"rule", "severity", "subject", "evidence", "why", "fix", "source"}
    main(["resources", "--json"])
    text = capsys.readouterr().out
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(text)
    main(["doctor", "--json", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    found = json.loads(capsys.readouterr().out)
    assert set(found["vms"]) == {"a", "b"}


def test_stacked_bars_lie_behind_each_other():
    """In a stack each bar begins where the one before it ends."""
    import pandas as pd

    from workbench.widgets.rank_figures import iteration_figure
    from workbench.widgets.static_figure import static_html

    row = {"rank": 0, "iteration_us": 10_000, "forward_us": 4000, "backward_us": 5000}
    picture = static_html(iteration_figure(pd.DataFrame([row])), "mean iteration")
    bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="[\d.]+"', picture)
    bars = [(float(x), float(width)) for x, width in bars][-3:]
    for (x, width), (following, _) in itertools.pairwise(bars):
        assert following == pytest.approx(x + width, abs=0.2)


@pytest.mark.soak
def test_magics_use_a_cluster_that_python_has_started():
    """The only one that runs; of several, none is chosen."""
    source = "import workbench as wb\none = wb.Cluster(n=1, backend='ddp').start()"
    with opened(source, fresh=True) as notebook:
        assert values_of(notebook.run("%%distributed --out result\nrank + 7")) == ""
        assert (
            values_of(notebook.run("result.values, result.output")) == "({0: 7}, '[rank 0] 7\\n')"
        )
        assert "ready" in values_of(notebook.run("%cluster"))
        assert "stopped" in values_of(notebook.run("%cluster stop\n"))
        assert values_of(notebook.run("one.state")) == "'stopped'"
        source = "two, three = (wb.Cluster(n=1, backend='ddp').start() for _ in range(2))"
        assert not error_of(notebook.run(source))
        assert "stopped. Start one with" in error_of(notebook.run("%%distributed\n1"))
        assert not error_of(notebook.run("two.stop()"))
        assert text_of(notebook.run("%%distributed\nrank + 1")) == "[rank 0] 1\n"
