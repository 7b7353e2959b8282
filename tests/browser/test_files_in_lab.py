"""Files of a run are downloaded in a real JupyterLab, from beneath an error."""

import zipfile

from bundles import WRITE_WITH_THE_ERROR
from playwright.sync_api import expect

from .material import START_RANKS, write_notebook
from .pages import LONG_MS

CELLS = (WRITE_WITH_THE_ERROR, START_RANKS, "%%distributed\nraise ValueError('x')")


def test_the_evidence_of_an_error_is_downloaded(lab, server, ranks_kernel):
    """The link lies beneath the error, and the page's cookie suffices."""
    path = write_notebook(server, "evidence.ipynb", *CELLS)
    notebook = lab.open_notebook(server.connect(path, ranks_kernel))
    notebook.run_all()
    link = notebook.output(2).locator(".jp-gw-File a")
    expect(link).to_be_visible(timeout=LONG_MS)
    with lab.page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename.startswith("evidence-cell-")
    assert "manifest.json" in zipfile.ZipFile(download.value.path()).namelist()
