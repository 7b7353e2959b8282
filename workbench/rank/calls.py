"""Calls the functions of `session`, for the kernel, which loads no PyTorch and names them."""

from __future__ import annotations

from typing import Any


def call_session(name: str, *given: Any, **options: Any) -> Any:
    """Call a function of `session` by its name; ipyparallel sends this function to a rank."""
    from workbench.rank import session

    return getattr(session, name)(*given, **options)
