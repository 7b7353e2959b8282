"""Everything that a notebook displays: the live view, tables, static pictures, plotly figures.

`LiveView` shows any `source.TimingSource`; `resources_view` and `doctor_view` show this VM.
Import other names from their modules. Each module is loaded on first use, so that
loading the magics loads neither NumPy nor the widget libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.widgets.live import LiveView
    from workbench.widgets.machine import doctor_view, resources_view

_MODULES = {"LiveView": "live", "doctor_view": "machine", "resources_view": "machine"}

__all__ = ["LiveView", "doctor_view", "resources_view"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
