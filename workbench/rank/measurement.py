"""Runs the kernel's measurements on the ranks, isolated from the names and the state of cells."""

from __future__ import annotations

import ast
import builtins
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from workbench.rank.backends.neutral import neutral

BUILTINS = dict(vars(builtins))
"""The built-in functions at the start of the process, which cells cannot change."""


def measure(source: str, names: Mapping[str, Any], show: Callable[[str], None]) -> Any:
    """Run the source of a measurement; return the value of its last line.

    Parameters
    ----------
    source
        Python statements; the last one must be an expression.
    names
        The variables of the measurement, besides `torch`, `time`, `math` and `show`.
    show
        Shows a line of its progress.

    Examples
    --------
    >>> measure("math.sqrt(size)", {"size": 9.0}, print)
    3.0
    """
    variables = {"torch": torch, "time": time, "math": math, "show": show, **names}
    namespace = {"__builtins__": BUILTINS, "__name__": "workbench.measurement", **variables}
    tree = ast.parse(source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    with neutral(), _plain_memory():
        exec(compile(tree, "<measurement>", "exec"), namespace)  # noqa: S102 - it is ours
        return eval(compile(ast.Expression(last.value), "<measurement>", "eval"), namespace)  # noqa: S307


@contextmanager
def _plain_memory() -> Iterator[None]:
    """Keep PyTorch from filling new memory, as deterministic algorithms do: this takes time."""
    before = torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(before)
