"""A plotly figure that leaves something where no script draws it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from workbench.widgets.static_figure import static_html


class StudyFigure(go.Figure):
    """A figure for study; its MIME bundle also has a static picture with its values.

    `_shown` is what it shows, in words.
    """

    _shown = "Figure"

    def _repr_mimebundle_(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(*arguments, **options)
        if bundle:  # else plotly shows it in a browser
            bundle.setdefault("text/html", static_html(self, self._shown))
            bundle.setdefault("text/plain", self._shown)
        return bundle

    def _ipython_display_(self) -> None:
        bundle = self._repr_mimebundle_()
        if not bundle:
            super()._ipython_display_()
            return
        from IPython.display import display

        display(bundle, raw=True)


def study_figure(shown: str) -> StudyFigure:
    """Return an empty figure that shows what `shown` says."""
    figure = StudyFigure()
    figure._shown = shown
    return figure
