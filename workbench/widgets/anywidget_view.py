"""The live view as an anywidget, for front ends without this package's extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.errors import WorkbenchError

STATIC = Path(__file__).parent / "static"


def make_widget(read_view_state: Callable[[], dict[str, Any]]) -> anywidget.AnyWidget:
    """Create the widget of a live view.

    Parameters
    ----------
    read_view_state
        Returns everything that the view draws (`messages.make_snapshot`); called from any thread.

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

    class TimingsWidget(_ViewStateWidget):
        _esm = script.read_text(encoding="utf-8")
        _css = style.read_text(encoding="utf-8")

    return TimingsWidget(read_view_state)


class _ViewStateWidget(anywidget.AnyWidget):
    """A widget that reads the view state for its trait `snapshot` when a front end requests it.

    A reloaded page requests the widget's traits once, and receives messages afterwards. If each
    message also set the trait, everything would be sent twice.
    """

    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, read_view_state: Callable[[], dict[str, Any]]) -> None:
        self._read_view_state = read_view_state
        super().__init__()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the values of the traits `key`, by default all, with the current view state."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if "snapshot" in state:
            state["snapshot"] = self._read_view_state()
        return state
