"""`workbench.data`: names an iterable that a training loop reads its batches from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Iterable[Any])


def data(iterable: _T) -> _T:
    """Return an iterable with the same batches, whose time is recorded as data loading.

    A DataLoader and its subclasses, and the loaders of torchdata, Hugging Face datasets,
    accelerate, WebDataset, FFCV and DALI, are recorded without it. It is of use for a generator,
    or for a class of your own, whose time is shown as *other* otherwise. The samples of an
    iteration are then those of the batches with which it trains.

    The iterable is asked for a batch exactly when the loop asks for one. Outside the ranks of a
    cluster, the iterable itself is returned.

    Parameters
    ----------
    iterable
        Anything that ``for`` accepts. An iterator remains one, so that `next` accepts it.

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
