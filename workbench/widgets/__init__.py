"""Everything that a notebook displays: the live view, tables, static pictures, plotly figures.

`LiveView` shows any `source.TimingSource`; `resources_view` and `doctor_view` show this VM.
Import other names from their modules. Each module is loaded on first use, so that
loading the magics loads neither NumPy nor the widget libraries.

- `live`: the live view of timings. `source` is its interface to timings; `cluster_source` reads
  them from a cluster, and `replay` from a recorded run. `key_figures`, `stages`, `earlier_runs`,
  `nominal` and `profiles` compute what the sources return
- `stream`, `messages`, `preopened_comm`: when and how the live view's messages reach a page;
  `anywidget_view`: the view in front ends without this package's extension; `replay_view`: the
  controls of a replay
- `picture`, `tables`, `verdict`, `grid`, `phases`: the live view's saved output
- `panel`: the kernel's end of the sidebar panel, with `vm_watch`, `training_share`,
  `cluster_actions` and `cluster_entry`; `study`: forms with sliders and buttons
- `views`, `runs`, `recording`, `timings_figures`, `run_files`: what ``%timings`` and ``%explain``
  return; `fabric_view`: ``%fabric``; `clusters`: ``%cluster``; `use`, `machine`: ``%resources``;
  `machine`, `findings`, `hosts_view`: ``%doctor``
- `waterfall`, `rank_figures`, `sizes`, `fabric_figures`, `plan_figure`, `scaling_figures`: plotly
  figures, made by `plotly_figure`; `static_figure` and `figure_table` draw them without scripts
- `table`, `svg`, `tree_picture`: tables and pictures
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
