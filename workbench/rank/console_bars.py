"""Progress bars of tqdm as text: a widget of a rank's has no model in the notebook's page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NOTEBOOK = "tqdm.notebook"
"""`tqdm.auto` falls back to text as well, where this has no widgets."""


class _TextBars(MetaPathFinder, Loader):
    """Gives a `tqdm.notebook` whose bars are those of `tqdm.std`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as the import system calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find that module only."""
        return ModuleSpec(fullname, self) if fullname == _NOTEBOOK else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        from tqdm import std  # type: ignore[import-untyped]

        bars = {"tqdm": std.tqdm, "trange": std.trange}
        vars(module).update(bars, tqdm_notebook=std.tqdm, tnrange=std.trange)


def install() -> None:
    """Have tqdm show text wherever it would show a widget."""
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TextBars())
