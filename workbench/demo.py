"""Run the quickstart notebook without a browser, and open a notebook that replays a run."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.errors import CellError, UsageError
from workbench.timings.session_file import SUFFIX

# In a clone, this is a link to the notebook next to the other examples. The folder contains nothing
# else, because the kernel and the ranks, which run in the folder, can import what it contains.
NOTEBOOK = (Path(__file__).parent / "notebooks" / "01-quickstart.ipynb").resolve()
_log = logging.getLogger(__name__)

_CELL_TIMEOUT_S = 300
_MAX_STARTS = 3


@dataclass(frozen=True)
class DemoResult:
    """Result of the quickstart notebook.

    Attributes
    ----------
    summary
        The table of key figures and the sentences below it, as text.
    html
        Path of the executed notebook.
    """

    summary: str
    html: Path


def run_demo(html: Path, notebook: Path = NOTEBOOK) -> DemoResult:
    """Execute `notebook` and write it to `html`.

    Raises
    ------
    UsageError
        There is no such notebook, or a required package is missing.
    CellError
        A cell failed.
    """
    return write_page(execute(notebook), html)


def write_page(page: Any, html: Path) -> DemoResult:
    """Write an executed notebook to `html`."""
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(_to_html(page), encoding="utf-8")
    return DemoResult(_summary(page), html)


def execute(notebook: Path) -> Any:
    """Execute `notebook` in its folder, and return it as a node of nbformat; see `run_demo`."""
    if not notebook.is_file():
        raise UsageError(
            f"{notebook}: no such notebook. Name an existing one with --notebook; "
            "the quickstart is part of gradient-workbench, not of gradient-workbench-rank."
        )
    _check_packages(notebook)
    import nbclient
    import nbformat

    page = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(
        page,
        timeout=_CELL_TIMEOUT_S,
        iopub_timeout=_CELL_TIMEOUT_S,  # by default 4 s, then nbclient drops output
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        coalesce_streams=True,  # keeps only the last state of a progress line
    )
    started_at = time.monotonic()
    for starts_left in reversed(range(_MAX_STARTS)):
        try:
            client.execute()
        except (
            nbclient.exceptions.CellControlSignal,
            nbclient.exceptions.CellTimeoutError,
            nbclient.exceptions.DeadKernelError,
        ) as error:
            raise CellError(f"{notebook.name} failed: {error}") from None
        except RuntimeError as error:
            # jupyter_client chooses the kernel's ports. If another process takes one of them
            # first, the kernel ends. No cell has run yet, so the start is repeated.
            if not starts_left or "died before replying" not in str(error):
                raise
            _log.info("%s: the kernel did not start, trying again: %s", notebook.name, error)
        else:
            break
    _log.info("%s: executed in %.1f s", notebook.name, time.monotonic() - started_at)
    return page


def _check_packages(notebook: Path) -> None:
    """Raise `UsageError` if a package that the notebook needs is not installed."""
    required = ["nbclient", "nbconvert", "nbformat"]
    if notebook == NOTEBOOK:
        required.append("sklearn")  # the notebook trains on its data
    missing_packages = [name for name in required if find_spec(name) is None]
    if missing_packages:
        raise UsageError(
            f"workbench demo: not installed: {', '.join(missing_packages)}. Run "
            "`pip install 'gradient-workbench[notebooks]'`."
        )


def _to_html(page: Any) -> str:
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter().from_notebook_node(page)
    return str(body)


def _summary(page: Any) -> str:
    """Return the text output of the training cell and the summary cells."""
    texts = []
    for cell in page.cells:
        if {"train", "summary"} & set(cell.metadata.get("tags", [])):
            texts += [output.text for output in cell.outputs if output.output_type == "stream"]
        elif cell.source.startswith("%timings summary"):
            texts += [output.data["text/plain"] for output in cell.outputs if "data" in output]
    return "\n".join(text.strip("\n") for text in texts)


def open_replay(run: str, speed: float, notebook: Path | None = None) -> int:
    """Open JupyterLab with a notebook that replays a run; return its exit status.

    With `notebook`, only write the notebook to this new file.

    Raises
    ------
    RunError, UsageError
        There is no such run, the speed is not valid, or the file exists or cannot be written.
    """
    import nbformat

    from workbench.timings.replay import checked_speed
    from workbench.timings.run import open_run

    checked_speed(speed)
    path = str(open_run(run).path)
    if Path(run).suffix == SUFFIX:  # the session file was unpacked for this process only
        path = str(Path(run).expanduser().absolute())
    cells = [
        nbformat.v4.new_markdown_cell(
            "# Replay\n\nRun the cell below (Shift+Enter). The live view and the *Gradient "
            "Workbench* sidebar then show the recording; `%cluster stop` ends it."
        ),
        nbformat.v4.new_code_cell(
            f"%load_ext workbench\n%timings replay {shlex.quote(path)} --speed {speed:g}"
        ),
    ]
    page = nbformat.v4.new_notebook(cells=cells)
    page.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    if notebook is not None:
        try:
            with notebook.open("x", encoding="utf-8") as file:
                nbformat.write(page, file)
        except FileExistsError:
            raise UsageError(f"--notebook {notebook}: it exists. Name a new file.") from None
        except OSError as error:
            raise UsageError(
                f"--notebook {notebook}: {error.strerror}. Name a file that can be written."
            ) from None
        return 0
    with tempfile.TemporaryDirectory(prefix="workbench-replay-") as folder:
        path = str(Path(folder) / "replay.ipynb")
        nbformat.write(page, path)
        with subprocess.Popen([sys.executable, "-m", "jupyterlab", path]) as server:
            while True:
                try:
                    return server.wait()
                except KeyboardInterrupt:
                    # Ctrl-C in a terminal also interrupts the server, which then asks the user.
                    continue
