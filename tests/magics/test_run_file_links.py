"""Links to files of runs beneath the outputs of a real kernel."""

from __future__ import annotations

from pathlib import Path

from bundles import WRITE_WITH_THE_ERROR
from run_notebook import error_of, opened

from workbench.timings.runs import runs_folder
from workbench.widgets.run_files import MIME_TYPE, link_bundle


def test_an_error_ends_with_a_link_to_its_evidence():
    """After the error, as data for JupyterLab and as the path for others; without a URL."""
    with opened(WRITE_WITH_THE_ERROR, "%cluster start -n 1") as notebook:
        cell = notebook.run("%%distributed\nraise ValueError('x')")
        (line,) = [one for one in error_of(cell).splitlines() if one.startswith("Evidence: ")]
        path = Path(line.removeprefix("Evidence: "))
        last = cell.outputs[-1]
        assert last.output_type == "display_data"
        assert last.data == {
            MIME_TYPE: {"run": path.parent.name, "file": path.name, "text": ""},
            "text/plain": line,
        }
        cell = notebook.run("raise ValueError('not of a cell on the ranks')")
        assert [one.output_type for one in cell.outputs] == ["error"]


def test_a_file_that_the_server_does_not_send_has_no_link(tmp_path):
    """A run in another folder, and a file that is not for users."""
    sent = runs_folder() / "run" / "profile-1.json.gz"
    assert link_bundle(sent, "text", "shown") == {
        MIME_TYPE: {"run": "run", "file": sent.name, "text": "shown"},
        "text/plain": "text",
    }
    for path in (tmp_path / "run" / sent.name, sent.with_name("run.json")):
        assert link_bundle(path, "text") == {"text/plain": "text"}
