"""Run the quickstart notebook without a browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import CellError, UsageError

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "01-quickstart.ipynb"
_CELL_TIMEOUT_S = 300


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
        If there is no such notebook, or a package that runs it is missing.
    CellError
        If a cell failed.
    """
    if not notebook.is_file():
        raise UsageError(
            f"{notebook}: no such notebook. "
            "Run this in a clone of the repository, or name a notebook with --notebook."
        )
    try:
        import nbclient
        import nbformat
    except ImportError as error:
        raise UsageError(
            f"workbench demo: the package {error.name} is not installed. Run "
            "`pip install 'gradient-workbench[notebooks]'`."
        ) from error
    page = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(
        page,
        timeout=_CELL_TIMEOUT_S,
        iopub_timeout=_CELL_TIMEOUT_S,  # of 4 s by default, after which nbclient drops output
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    try:
        client.execute()
    except (
        nbclient.exceptions.CellControlSignal,
        nbclient.exceptions.CellTimeoutError,
        nbclient.exceptions.DeadKernelError,
    ) as error:
        raise CellError(f"{notebook.name} failed: {error}") from None
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(_to_html(page), encoding="utf-8")
    return DemoResult(_summary(page), html)


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
