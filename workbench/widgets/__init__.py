"""What is seen in a notebook: the live view, tables, pictures, figures.

`LiveView` shows whatever fulfils `source.TimingSource`; `resources_view` and
`doctor_view` show this machine. The rest of this room is imported by name from
its modules. Each is loaded when it is first used, so that loading the magics
does not load numpy and the widgets' libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.widgets.live import LiveView
    from workbench.widgets.machine import doctor_view, resources_view

_HOMES = {"LiveView": "live", "doctor_view": "machine", "resources_view": "machine"}

__all__ = ["LiveView", "doctor_view", "resources_view"]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
