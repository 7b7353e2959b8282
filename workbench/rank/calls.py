"""Calls the functions of `session` by name: the kernel does not load PyTorch to import them."""

from __future__ import annotations

from typing import Any


def call_session(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of `session` by its name; ipyparallel sends this function to a rank."""
    from workbench.rank import session

    return getattr(session, name)(*args, **options)
