"""The live view as an anywidget: for every front end without our extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.errors import WorkbenchError

STATIC = Path(__file__).parent / "static"


def make_widget(snapshot: Callable[[], dict[str, Any]]) -> anywidget.AnyWidget:
    """Make the widget of a view.

    Parameters
    ----------
    snapshot
        Gives the view's snapshot as of now, from any thread.

    Raises
    ------
    WorkbenchError
        The package was installed without its built front end.
    """
    script, style = STATIC / "live.js", STATIC / "live.css"
    if not script.exists():
        raise WorkbenchError(
            f"The live view's script is missing: {script}. This is a "
            "checkout whose front end was not built. Run `make lab` there, or install the wheel."
        )

    class TimingsWidget(_SnapshotWidget):
        _esm = script.read_text(encoding="utf-8")
        _css = style.read_text(encoding="utf-8")

    return TimingsWidget(snapshot)


class _SnapshotWidget(anywidget.AnyWidget):
    """Hands over the snapshot of now to whoever asks for its state.

    A page that was reloaded asks for the state once and hears messages from then
    on; setting the trait at each message would send everything twice.
    """

    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, take: Callable[[], dict[str, Any]]) -> None:
        self._take = take
        super().__init__()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Give the state of all traits or some, the snapshot as of now."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "snapshot" in state:
            state["snapshot"] = self._take()
        return state
