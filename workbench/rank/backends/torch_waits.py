"""The calls of torch.distributed in which a thread waits: since when, and for which ranks.

They are replaced by functions in Python, in whose frames another thread finds the calls.
`flight_recorder` has the collectives themselves, but not what Gloo sends and receives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

_HELPER = "_new_process_group_helper"
_SENDS = {"send": "dst", "recv": "src", "recv_anysource": ""}
"""Methods of a process group, and the argument of torch.distributed that names the peer."""


class Call(NamedTuple):
    """A call that has not returned.

    Attributes
    ----------
    name
        Such as ``"recv(src=1)"``; empty for a wait for an unknown collective.
    began
        When it was called, as ``time.perf_counter_ns()``.
    ranks
        The ranks that it needs, with this one; None for all, or if they are not known.
    """

    name: str
    began: int
    ranks: tuple[int, ...] | None


_sent: WeakKeyDictionary[Any, tuple[str, tuple[int, ...] | None]] = WeakKeyDictionary()
"""The name and the ranks of each send and receive, by its `Work`."""


def install() -> None:
    """Replace the waits, sends and receives of process groups."""
    for owner, name in (
        (dist.Work, "wait"),
        (torch._C.Future, "wait"),
        (dist.ProcessGroup, "monitored_barrier"),
    ):
        original = getattr(owner, name)
        setattr(owner, name, timed(original, original))
    for name in _SENDS:
        original = getattr(dist.ProcessGroup, name)
        setattr(dist.ProcessGroup, name, timed(original, _noting(original)))


def timed(like: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function`, with the name of `like`; `find` finds its calls."""

    @wraps(like)
    def call(*args: Any, **options: Any) -> Any:
        began = perf_counter_ns()  # noqa: F841 - `find` reads it
        return function(*args, **options)

    return call


_CALL = timed(len, len).__code__


def find(frame: FrameType | None) -> Call | None:
    """Return the outermost call of these functions in the frames of a thread; None for none."""
    found = None
    while frame is not None:
        if frame.f_code is _CALL and "began" in (values := frame.f_locals):
            found = values
        frame = frame.f_back
    if found is None:
        return None
    name, ranks = _described(found["function"].__name__, found["args"])
    return Call(name, found["began"], ranks)


def _described(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[int, ...] | None]:
    if name == "wait":
        return _sent.get(args[0], ("", None))
    if name in _SENDS:
        return _send(name, args)
    if name == _HELPER:
        return "new_group()", tuple(args[2]) or None
    return f"{name}()", _members(args[0]) if name == "monitored_barrier" else None


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def start(*args: Any, **options: Any) -> Any:
        work = original(*args, **options)
        if work is not None:
            _sent[work] = _send(original.__name__, args)
        return work

    return start


def _send(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[int, ...] | None]:
    """Return the name of a call of ``ProcessGroup.send`` or ``recv``, and its ranks."""
    group, argument = args[0], _SENDS[name]
    if not argument:
        return "recv()", _members(group)
    try:
        peer = dist.get_global_rank(group, args[2])
    except (ValueError, KeyError, IndexError):  # not registered, or the peer given by keyword
        return f"{name}()", None
    return f"{name}({argument}={peer})", tuple(sorted({dist.get_rank(), peer}))


def _members(group: Any) -> tuple[int, ...] | None:
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (ValueError, KeyError):  # not registered
        return None
