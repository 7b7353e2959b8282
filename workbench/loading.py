"""`workbench.data`: records the time that a training loop spends in an iterable of batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Iterable[Any])


def data(iterable: _T) -> _T:
    """Return an iterable of the same batches; the time spent in it is recorded as data loading.

    A DataLoader and its subclasses, and the loaders of torchdata, Hugging Face datasets,
    accelerate, WebDataset, FFCV and DALI, are recorded without this function. Use it for a
    generator or for a class of your own; their time is otherwise shown as *other*. The number of
    samples of an iteration is then taken from the batches that the iteration trains on.

    Batches are not prefetched: the iterable is asked for a batch when the loop asks for it.
    Outside the ranks of a cluster, the iterable itself is returned.

    Parameters
    ----------
    iterable
        Anything that ``for`` accepts. For an iterator, the result is an iterator too, so that
        `next` accepts it.

    Examples
    --------
    >>> import workbench
    >>> def batches():
    ...     for number in range(3):
    ...         yield [number] * 4
    >>> for batch in workbench.data(batches()):
    ...     print(batch)
    [0, 0, 0, 0]
    [1, 1, 1, 1]
    [2, 2, 2, 2]
    """
    session: Any = sys.modules.get("workbench.rank.session")
    recorded: _T = iterable if session is None else session.data(iterable)
    return recorded
