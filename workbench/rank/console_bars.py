"""Shows progress bars of tqdm as text, because the notebook cannot show a rank's widgets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NOTEBOOK = "tqdm.notebook"
"""`tqdm.auto` imports its bars from this module too."""


class _TextBars(MetaPathFinder, Loader):
    """Provides a `tqdm.notebook` with the bars of `tqdm.std`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - given by the import system
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for `tqdm.notebook`; None for all other modules."""
        return ModuleSpec(fullname, self) if fullname == _NOTEBOOK else None

    def exec_module(self, module: ModuleType) -> None:
        """Set the names of the module."""
        from tqdm import std  # type: ignore[import-untyped]

        bars = {"tqdm": std.tqdm, "trange": std.trange}
        vars(module).update(bars, tqdm_notebook=std.tqdm, tnrange=std.trange)


def install() -> None:
    """Make tqdm show text instead of widgets."""
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TextBars())
