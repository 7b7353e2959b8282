"""The samples of an iteration, and its place in the pass of a DataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

_DIFFERENT = -1


class BatchProgress(NamedTuple):
    """What a step trained with; 0 where unknown.

    Attributes
    ----------
    samples
        Number of samples.
    batch, batches
        The number of its last batch in the DataLoader's pass, and of all its batches.
    """

    samples: int
    batch: int
    batches: int


NO_PROGRESS = BatchProgress(0, 0, 0)


class Batches:
    """Counts what the forwards of training use, between two optimizer steps.

    The batches of a DataLoader count, except those that an evaluation uses. Without a DataLoader
    the arguments of the first model count, because others may compute with its output.
    """

    def __init__(self) -> None:
        self._length = 0
        """Batches in the current pass."""
        self._reset()

    def _reset(self) -> None:
        self._samples = self._model = 0
        self._used = self._pending = NO_PROGRESS

    def loaded(self, batch: Any, loader: Any) -> None:
        """Note a batch, and the iterator of the DataLoader that has returned it."""
        place = getattr(loader, "_num_yielded", 0)
        if place == 1:
            self._length = _length(loader)
        samples = _sum(self._pending.samples, first_dimension(batch))
        self._pending = BatchProgress(samples, place, self._length if place <= self._length else 0)

    def forward(self, model: int, arguments: Any) -> None:
        """Note a forward of training of a model, by its `id`."""
        if self._pending is not NO_PROGRESS:
            samples = _sum(self._used.samples, self._pending.samples)
            self._used = self._pending._replace(samples=samples)
            self._pending = NO_PROGRESS
        elif self._used is NO_PROGRESS and self._model in (0, model):
            self._model = model
            self._samples = _sum(self._samples, first_dimension(arguments))

    def discard(self) -> None:
        """Note an evaluation: what was loaded for it is not trained with."""
        self._pending = NO_PROGRESS

    def take(self) -> BatchProgress:
        """Return what was used since the last call."""
        if self._pending is not NO_PROGRESS:  # its forward was not seen
            self.forward(0, ())
        used = self._used
        samples = self._samples if used is NO_PROGRESS else used.samples
        self._reset()
        return used._replace(samples=max(0, samples))


def first_dimension(batch: Any) -> int:
    """Return the first dimension of the tensors of a batch; 0 without any, -1 if they differ."""
    values: Any = (batch,)
    if isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, (tuple, list)):
        values = batch
    found = 0
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim():
            size = value.shape[0]
            if found and size != found:
                return _DIFFERENT
            found = size
    return found


def _sum(one: int, other: int) -> int:
    """Return the sum, or that it is not known."""
    return _DIFFERENT if _DIFFERENT in (one, other) else one + other


def _length(loader: Any) -> int:
    """Return the number of batches in the pass of a DataLoader's iterator; 0 if unknown."""
    try:
        return len(loader._index_sampler)
    except (AttributeError, TypeError, NotImplementedError):
        return 0  # a stream
