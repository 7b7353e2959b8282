"""Links in a notebook to files of runs, which are outside Jupyter's root.

JupyterLab's extension draws the link, because only the page knows the server's base URL. Other
front ends show the path. The output has neither a URL nor a token.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import EVIDENCE, CellError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

MIME_TYPE = "application/vnd.gradient-workbench.file+json"


@dataclass(frozen=True)
class RunFile:
    """A file that the server sends through its route ``runs/RUN/files/FILE``."""

    run: str
    file: str

    @classmethod
    def at(cls, path: Path) -> RunFile | None:
        """Return the file at a path; None if the server does not send it."""
        # Imported here, because loading the extension reads no runs.
        from workbench.timings.folder import download_type
        from workbench.timings.runs import runs_folder

        if path.parent.parent != runs_folder() or download_type(path.name) is None:
            return None
        return cls(path.parent.name, path.name)


def link_bundle(path: Path, text: str, shown: str = "") -> dict[str, Any]:
    """Return a MIME bundle with a link to a file.

    Parameters
    ----------
    path
        The file; a file that the server does not send has no link.
    text
        Shown by front ends that cannot draw the link.
    shown
        Shown above the link; may be empty.
    """
    run_file = RunFile.at(path)
    plain: dict[str, Any] = {"text/plain": text}
    return plain if run_file is None else {MIME_TYPE: {**asdict(run_file), "text": shown}, **plain}


def register(shell: InteractiveShell) -> None:
    """Show a link to the evidence bundle beneath the error of a cell, in notebooks."""
    if getattr(shell, "kernel", None) is None:
        return
    if _show_evidence in shell.events.callbacks["post_run_cell"]:
        return
    shell.events.register("post_run_cell", _show_evidence)


def _show_evidence(result: ExecutionResult) -> None:
    error = result.error_in_exec
    if not isinstance(error, CellError) or error.evidence is None:
        return
    bundle = link_bundle(error.evidence, f"{EVIDENCE}{error.evidence}")
    if MIME_TYPE in bundle:
        from IPython.display import display

        display(bundle, raw=True)
