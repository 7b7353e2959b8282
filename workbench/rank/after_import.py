"""Calls functions after a cell has imported a module that a rank itself does not need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Call = Callable[[Any], None]


class _ImportWatcher(MetaPathFinder):
    """Finds the watched modules, and makes their loaders call a function after the import."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Call, str]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a watched module; None for all other modules."""
        if fullname not in self.calls:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module
        call, hint = self.calls[fullname]

        def exec_module(module: ModuleType) -> None:
            try:
                load(module)
            except ImportError as error:
                if hint:
                    raise ImportError(f"{error} {hint}") from error
                raise
            call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _ImportWatcher()


def after_import(name: str, call: Call, hint: str = "") -> None:
    """Call a function with a module after its import, or now if it has been imported.

    Parameters
    ----------
    name
        Full name of the module.
    call
        Called with the module.
    hint
        What to do if the import fails; added to the message of its ImportError.

    Examples
    --------
    >>> import json
    >>> after_import("json", lambda module: print(module.__name__))
    json
    """
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)
    _watcher.calls[name] = call, hint
    if name in sys.modules:
        call(sys.modules[name])
