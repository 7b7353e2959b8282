"""Refuses to start a spawned process that would need code of a cell.

A spawned process is a new Python that imports the code it runs. It has no cells. Each process
would fail with its own traceback about a missing attribute of ``__main__``, and often the parent
would wait.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import sys
from collections import deque
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType
from typing import Any

from workbench.rank.after_import import after_import
from workbench.rank.training_errors import SpawnError

_MODULES = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_MAX_OBJECTS = 500
"""Maximum number of objects that are searched for code of a cell."""


def install() -> None:
    """From now on, check each process before it is spawned."""
    for module in _MODULES:
        after_import(module, _check_starts)


def _check_starts(module: Any) -> None:
    launch = module.Popen._launch
    if getattr(launch, "checks_cells", False):
        return

    @functools.wraps(launch)
    def checked(self: Any, process: BaseProcess) -> Any:
        if not _main_has_file() and (name := _name_in_cell(process)):
            raise SpawnError(
                f"{type(process).__name__}: the new process needs {name}, which is defined in a "
                "cell, and a spawned process is a new Python, which imports what it runs and has "
                "no cells. If the processes were to be the ranks of a training, call the function "
                "directly: this cell already runs in one process per rank. Otherwise move "
                f"{name} to a file with %%writefile and import it, or use "
                "multiprocessing.get_context('fork') (of a DataLoader: "
                "multiprocessing_context='fork')."
            )
        return launch(self, process)

    checked.checks_cells = True  # type: ignore[attr-defined]
    module.Popen._launch = checked


def _main_has_file() -> bool:
    """Return whether a spawned process can import ``__main__``, as while ``%run`` runs a file."""
    main = sys.modules.get("__main__")
    return bool(getattr(main, "__file__", None) or getattr(main, "__spec__", None))


def _name_in_cell(process: BaseProcess) -> str:
    """Return the name of a cell's function or class that a process needs, or an empty string."""
    waiting: deque[Any] = deque([type(process), vars(process)])
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        code = value if isinstance(value, (type, FunctionType)) else type(value)
        if code.__module__ == "__main__":
            return str(code.__qualname__)
        waiting.extend(_parts(value))
    return ""


def _parts(value: Any) -> Iterable[Any]:
    """Return the objects that are pickled with an object.

    Their class or function may be defined in a cell.
    """
    if isinstance(value, dict):
        return list(value.values())[:_MAX_OBJECTS]
    if isinstance(value, (tuple, list)):
        return value[:_MAX_OBJECTS]
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if _is_pickled_by_attributes(type(value)):
        with contextlib.suppress(Exception):  # a user's __getattr__ may raise anything
            return (value.__dict__,)
    return ()


def _is_pickled_by_attributes(kind: type) -> bool:
    methods = ("__reduce_ex__", "__reduce__", "__getstate__")
    changed = any(getattr(kind, name, None) is not getattr(object, name, None) for name in methods)
    reducers = (copyreg.dispatch_table, getattr(ForkingPickler, "_extra_reducers", {}))
    return not changed and not any(kind in table for table in reducers)
