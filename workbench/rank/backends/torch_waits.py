"""Finds the call of torch.distributed that a thread waits in, its start time and its ranks.

Such calls go through Python functions, so that another thread finds them in the thread's frames.
`flight_recorder` has the collectives themselves, but not Gloo's sends and receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
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
        Name such as ``"recv(src=1) 3"``, the third receive from this rank; empty for a wait for
        an unknown collective.
    began
        Time of the call, as ``time.perf_counter_ns()``.
    ranks
        The ranks that the call needs, with this rank; None for all, or if they are unknown.
    """

    name: str
    began: int
    ranks: tuple[int, ...] | None


class _Sent(NamedTuple):
    """A send or a receive.

    Attributes
    ----------
    name, ranks
        See `Call`.
    name_in_peer
        The name of the matching call in the other rank; empty if unknown.
    from_any
        The group and the tag of a receive from any rank; otherwise None.
    """

    name: str
    ranks: tuple[int, ...] | None
    name_in_peer: str = ""
    from_any: tuple[Any, int] | None = None


_sent: WeakKeyDictionary[Any, _Sent] = WeakKeyDictionary()
"""Sends and receives that the cell has not waited for, by their `Work`."""
_numbers: Counter[tuple[Any, ...]] = Counter()
"""Number of started sends and receives, by process group, direction, peer and tag."""


def install() -> None:
    """Replace the waits, sends and receives of process groups."""
    for owner, name in ((torch._C.Future, "wait"), (dist.ProcessGroup, "monitored_barrier")):
        original = getattr(owner, name)
        setattr(owner, name, timed(original, original))
    dist.Work.wait = timed(dist.Work.wait, _waiting(dist.Work.wait))
    for name in _SENDS:
        original = getattr(dist.ProcessGroup, name)
        setattr(dist.ProcessGroup, name, _sending(original))


def unfinished() -> dict[tuple[str, int], str]:
    """Return the names that unfinished sends and receives have in the other rank, by the `Work`.

    A send of Gloo counts as unfinished until the cell has waited for it.
    """
    names = {}
    for reference in _sent.keyrefs():  # a copy, because other threads change the dictionary
        work = reference()
        if work is None or work.is_completed():
            continue
        if (sent := _sent.get(work)) and sent.name_in_peer:
            names["sent", id(work)] = sent.name_in_peer
    return names


def forget() -> None:
    """Ignore all sends and receives so far, because their process groups have ended."""
    _sent.clear()
    _numbers.clear()


def timed(like: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` under the name and docstring of `like`, so that `find` finds its calls."""

    @wraps(like)
    def call(*args: Any, **options: Any) -> Any:
        began = perf_counter_ns()  # noqa: F841 - `find` reads it
        return function(*args, **options)

    return call


def find(frame: FrameType | None) -> Call | None:
    """Return the outermost wrapped call in a thread's frames; None without a wrapped call."""
    call_locals = None
    while frame is not None:
        if frame.f_code in _CALLS and "began" in (values := frame.f_locals):
            call_locals = values
        frame = frame.f_back
    if call_locals is None:
        return None
    sent: tuple[Any, ...] | None = call_locals.get("sent")
    name, ranks, *_ = sent or _described(call_locals["function"].__name__, call_locals["args"])
    return Call(name, call_locals["began"], ranks)


def _described(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[int, ...] | None]:
    if name == "wait":
        return _sent.get(args[0], ("", None))[:2]
    if name == _HELPER:
        return "new_group()", tuple(args[2]) or None
    return f"{name}()", _members(args[0]) if name == "monitored_barrier" else None


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a send or receive, so that `find` finds its calls."""

    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        sent = _send(original.__name__, args)
        began = perf_counter_ns()  # noqa: F841 - `find` reads it from this frame
        work = original(*args, **options)
        if work is not None:
            _sent[work] = sent
        return work

    return call


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(work: Any, *args: Any, **options: Any) -> Any:
        result = original(work, *args, **options)
        sent = _sent.pop(work, None) if _sent else None
        if sent is not None and sent.from_any is not None:
            _count_received(work, *sent.from_any)
        return result

    return wait


def _send(name: str, args: tuple[Any, ...]) -> _Sent:
    """Count and describe a call of ``ProcessGroup.send`` or ``recv``.

    The calls between two ranks with one tag are numbered, because they match in their order.
    """
    group = args[0]
    argument = _SENDS[name]
    if not argument:
        return _Sent("recv()", _members(group), "", (group, args[2] if len(args) > 2 else 0))
    try:
        peer = dist.get_global_rank(group, args[2])
        own_rank = dist.get_rank()
    except (ValueError, KeyError, IndexError):  # not registered, or the peer given by keyword
        return _Sent(f"{name}()", None)
    tag = args[3] if len(args) > 3 else 0
    number = _number(group, name, peer, tag)
    other = "recv(src" if name == "send" else "send(dst"
    rest = "" if group is dist.group.WORLD else f", group={group.group_name}"
    rest += f", tag={tag}" if tag else ""
    ranks = tuple(sorted({own_rank, peer}))
    mine = f"{name}({argument}={peer}{rest}) {number}"
    name_in_peer = f"{other}={own_rank}{rest}) {number}"
    return _Sent(mine, ranks, name_in_peer)


def _number(group: Any, name: str, peer: int, tag: int) -> int:
    """Return the number of the next send to a rank, or receive from it."""
    key = group.group_name, name, peer, tag
    _numbers[key] += 1
    return _numbers[key]


def _count_received(work: Any, group: Any, tag: int) -> None:
    """Count a receive from any rank among the receives from the sending rank."""
    with suppress(ValueError, KeyError, RuntimeError):  # not registered, or the source is unknown
        _number(group, "recv", dist.get_global_rank(group, work._source_rank()), tag)


def _members(group: Any) -> tuple[int, ...] | None:
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (ValueError, KeyError):  # not registered
        return None


_CALLS = {timed(len, len).__code__, _sending(len).__code__}
"""Code objects of the frames that `find` searches for."""
