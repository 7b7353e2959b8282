"""Keeps ``torch.compile`` from compiling functions of this package.

``torch.compile`` compiles each Python function that is called within compiled code, or where that
code is interrupted. PyTorch would count this package's functions among the user's, and warn that
they are compiled too often.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch


def never_compile(function: Callable[..., Any], *, calls: bool = True) -> None:
    """Exclude a function from compilation; with `calls`, also everything that it calls."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        return
    evaluation = torch._C._dynamo.eval_frame
    if hasattr(evaluation, "set_code_exec_strategy"):
        action = evaluation._FrameAction
        strategy = evaluation._FrameExecStrategy(
            action.SKIP, action.SKIP if calls else action.DEFAULT
        )
        evaluation.set_code_exec_strategy(code, strategy)
    elif hasattr(evaluation, "skip_code"):  # before PyTorch 2.6; called functions are not excluded
        evaluation.skip_code(code)


def never_compile_module(module: ModuleType) -> None:
    """Exclude all functions and methods of a module and the functions that they call."""
    for member in vars(module).values():
        if getattr(member, "__module__", None) != module.__name__:
            continue
        if isinstance(member, FunctionType):
            never_compile(member)
        elif isinstance(member, type):
            for method in vars(member).values():
                for function in (method, *_accessors(method)):
                    never_compile(function)


def _accessors(method: Any) -> tuple[Any, ...]:
    if isinstance(method, property):
        return (method.fget, method.fset)
    return (getattr(method, "__func__", None), getattr(method, "__wrapped__", None))
