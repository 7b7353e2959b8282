"""What is seen in a notebook: the live view, tables, pictures, figures.

`LiveView` shows whatever fulfils `source.TimingSource`. The rest of this room
is imported by name from its modules; `figures` loads plotly only when called.
"""

from __future__ import annotations

from workbench.widgets.live import LiveView

__all__ = ["LiveView"]
