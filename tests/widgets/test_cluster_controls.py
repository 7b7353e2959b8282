"""What the panel and the form of ``%cluster`` do, in a real kernel with real ranks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_page import Page
from kernels import start_kernel

from workbench.cluster.launchers import LAUNCHERS
from workbench.cluster.options import JobRequest
from workbench.cluster.start_options import PLACES, START_OPTIONS, arguments, start_line
from workbench.errors import UsageError
from workbench.magic_line import parse_line
from workbench.magics import WorkbenchMagics

FIELDS = Path(__file__).parents[2] / "labextension/src/cluster/fields.ts"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page that watches a kernel with two ranks; each test leaves two."""
    manager, client = start_kernel()
    try:
        page = Page(client)
        page.run("%load_ext workbench")
        page.ask("start", options={"n": 2, "backend": "ddp"})
        page.wait_for_state("ready")
        yield page
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def done(page: Page, kind: str, **more: object) -> str:
    """Send a request, wait for its end, and return its error."""
    page.heard.clear()
    page.ask(kind, **more)
    page.wait(lambda: {"type": "done", "request": kind} in page.heard, f"the end of {kind}")
    return "".join(one["message"] for one in page.heard if one["type"] == "error")


@pytest.mark.slow
def test_resize(page: Page) -> None:
    """More ranks, then fewer; a number that is none changes nothing."""
    for ranks in (3, 2):
        assert done(page, "resize", ranks=ranks) == ""
        page.wait(lambda n=ranks: len(page.state()["ranks"]) == n, f"{ranks} ranks")
    assert "must be a positive integer" in done(page, "resize", ranks="many")
    assert page.wait_for_state("ready")["n"] == 2


@pytest.mark.slow
def test_a_lost_rank_is_reported_between_cells_and_restarted(page: Page) -> None:
    """Nobody asks for the state, and no cell runs."""
    page.ask("refresh")
    pid = page.wait_for_state("ready")["ranks"][1]["pid"]
    page.heard.clear()
    os.kill(pid, signal.SIGKILL)
    assert [one["state"] for one in page.wait_for_state("failed")["ranks"]] == ["ready", "dead"]
    assert done(page, "restart") == ""
    assert page.wait_for_state("ready")["ranks"][1]["pid"] != pid
    assert "no rank is lost" in done(page, "restart")


@pytest.mark.soak
@pytest.mark.slow
def test_calibration_reports_its_progress_and_its_result(page: Page) -> None:
    """In the state, not in the output of a cell."""
    page.outputs.clear()
    assert done(page, "calibrate") == ""
    messages = [one["cluster"]["message"] for one in page.heard if one["type"] == "state"]
    assert any(re.fullmatch(r"calibrating: \d+%", message) for message in messages)
    page.wait(lambda: page.state()["fabric"] != "", "the result")
    assert "An allreduce on 2 ranks takes" in page.state()["fabric"]
    assert not [one for one in page.outputs if "calibrating" in one.get("text", "")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["restart", "resize", "calibrate"])
def test_a_change_during_a_cell_is_refused(page: Page, kind: str, tmp_path: Path) -> None:
    """It would happen at an unexpected time: when the cell has ended."""
    page.use_subshell()
    mark = tmp_path / "mark"
    source = f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(0.05)"
    page.heard.clear()
    cell = page.begin(f"%%distributed\n{source}")
    page.wait_for_state("running")
    try:
        assert "a cell runs on" in done(page, kind, ranks=3)
    finally:
        mark.touch()
    page.wait(lambda: cell in page.ended, "the end of the cell")
    page.subshell = None


@pytest.mark.slow
def test_the_inserted_cell_connects_to_the_cluster(page: Page) -> None:
    """It gives the cluster that runs, although that was resized."""
    page.ask("refresh")
    source = page.wait_for_state("ready")["source"]
    assert source.endswith("cluster = %cluster start -n 2 --backend ddp")
    page.run(
        f"{source}\nassert cluster is registry.current()".replace(
            "assert", "from workbench.cluster import registry\nassert"
        )
    )
    assert not any("ename" in one for one in page.outputs)


FORM = """
from workbench.widgets.study.cluster_form import ClusterForm
from workbench.cluster import registry
import time
form = ClusterForm()
def until(done):
    end = time.monotonic() + 100
    while not done():
        assert time.monotonic() < end, (form.error, registry.current())
        time.sleep(0.05)
def click(name):
    form.buttons[name].click()
    until(lambda: not form._pending)
    assert form.error == "", form.error
"""


@pytest.mark.slow
def test_the_form_does_the_same(page: Page) -> None:
    """Stop, start, resize, restart a lost rank; an error is shown, and the table follows."""
    page.outputs.clear()
    page.run(FORM)
    page.run("click('stop')\nuntil(lambda: form._start.layout.display == '')")
    page.run(
        "form.fields['backend'].value, form.fields['n'].value = 'ddp', '0'\n"
        "form.buttons['start'].click()\nuntil(lambda: 'positive integer' in form._message.value)"
    )
    page.run("form.fields['n'].value = '2'\nclick('start')")
    page.run(
        "form._ranks.value = 3\nclick('resize')\nuntil(lambda: '3 ranks' in form._state.value)"
    )
    page.run("form._ranks.value = 2\nclick('resize')")
    page.run(
        "import os, signal\nos.kill(registry.current().ranks[1].pid, signal.SIGKILL)\n"
        "until(lambda: form.buttons['restart'].layout.display == '')\nclick('restart')"
    )
    page.run(
        "bundle = form._repr_mimebundle_()\nassert '2 ranks, ready' in bundle['text/plain'], bundle"
    )
    page.run("assert 'application/vnd.jupyter.widget-view+json' in bundle")
    assert [one["evalue"] for one in page.outputs if "ename" in one] == []


@pytest.mark.slow
def test_a_kernel_has_one_form(page: Page) -> None:
    """Each %cluster shows it again, and adds neither listeners nor threads; a closed one is new."""
    page.outputs.clear()
    page.run(
        "from workbench.cluster import registry\nfrom workbench.widgets.study import "
        "cluster_form_view\nfirst = cluster_form_view()\nlisteners = len(registry._listeners)"
    )
    page.run("%cluster")
    page.run("assert cluster_form_view() is first and len(registry._listeners) == listeners")
    page.run("first.close()\nassert cluster_form_view() is not first")
    page.run("assert len(registry._listeners) == listeners, registry._listeners")
    assert [one["evalue"] for one in page.outputs if "ename" in one] == []


@pytest.mark.slow
def test_an_error_names_its_request(page: Page) -> None:
    """Others who wait for an answer are not told that theirs failed."""
    assert "must be a positive integer" in done(page, "resize", ranks="many")
    assert [one["request"] for one in page.heard if one["type"] == "error"] == ["resize"]


def test_one_table_of_options() -> None:
    """The launchers, the request of a job and the panel's fields agree with it."""
    names = {option.name for option in START_OPTIONS}
    assert set(PLACES) == set(LAUNCHERS)
    assert set(JobRequest.__annotations__) < names
    rows = re.findall(r"^  (\w+): \[(.*)\],?$", FIELDS.read_text(), re.MULTILINE)
    panel = {launcher: set(re.findall(r"\w+", fields)) for launcher, fields in rows}
    for launcher in LAUNCHERS:
        shown = {one.name for one in START_OPTIONS if one.label and launcher in one.launchers}
        snake = {re.sub("[A-Z]", lambda at: f"_{at[0].lower()}", one) for one in panel[launcher]}
        assert {"n" if one == "ranks" else one for one in snake} == shown - {"launcher"}


def test_the_line_of_a_start() -> None:
    """What was given, in the order of the help; a value with a space is quoted."""
    given = {"launcher": "slurm", "n": 4, "sbatch": "--mem 4G", "keep": None, "record": False}
    line = '%cluster start -n 4 --launcher slurm --sbatch "--mem 4G" --no-record'
    assert start_line(given) == line
    assert start_line({"n": 2, "cold": True}) == "%cluster start -n 2 --cold"
    assert start_line({"n": 2, "cold": False}) == "%cluster start -n 2"
    with pytest.raises(UsageError, match="color='red'"):
        arguments({"color": "red"})


@pytest.mark.parametrize(
    "text",
    [
        "--exclusive", "--mem 4G", "-x", "", "gpu", "a'b", "it's here", 'say "x y"', "'a'", '"a"',
        """--comment 'a b'""", "--time=1 --mem=4G", "--", "--no-record", "a=b", " a ", "a\tb",
    ],
)  # fmt: skip
def test_the_line_of_a_start_is_read_as_it_was_given(text: str) -> None:
    """Also where it looks like an option, or has quotes."""
    given = {"launcher": "slurm", "n": 4, "partition": text, "sbatch": text}
    line = start_line(given)
    assert line is not None
    args = vars(parse_line(WorkbenchMagics.cluster, line.removeprefix("%cluster ")))
    assert {name: args[name] for name in given} == given


@pytest.mark.parametrize("text", ['it\'s "here"', "a\nb", "a\u2028b", "--x\r"])
def test_a_start_that_no_line_can_describe(text: str) -> None:
    """The cell to insert then shows the status only."""
    assert start_line({"sbatch": text}) is None
