"""The live view as an anywidget, for front ends without this package's extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.errors import WorkbenchError

STATIC = Path(__file__).parent / "static"


def make_widget(snapshot: Callable[[], dict[str, Any]]) -> anywidget.AnyWidget:
    """Create the widget of a live view.

    Parameters
    ----------
    snapshot
        Returns the state of the view; called from any thread.

    Raises
    ------
    WorkbenchError
        The package was installed without its built front end.
    """
    script = STATIC / "live.js"
    style = STATIC / "live.css"
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
    """A widget that computes the `snapshot` trait whenever a front end requests the widget's state.

    A reloaded page requests the state once and receives messages afterwards. If each message
    set the trait, everything would be sent twice.
    """

    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, take_snapshot: Callable[[], dict[str, Any]]) -> None:
        self._take_snapshot = take_snapshot
        super().__init__()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state of the traits `key`, by default all, with a current snapshot."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "snapshot" in state:
            state["snapshot"] = self._take_snapshot()
        return state
