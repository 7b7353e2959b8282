"""Calls of data loaders: how long each took, and what its batch was used for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class LoaderPass:
    """One pass over a loader: an iterator.

    Attributes
    ----------
    trained, evaluated
        Whether a batch of it was trained with, or used by a forward that does not train.
    ended
        Whether it has no further batches.
    yielded
        How many batches it has returned.
    length
        How many batches it has in all; 0 if unknown, and less until it was asked.
    """

    trained: bool = False
    evaluated: bool = False
    ended: bool = False
    yielded: int = 0
    length: int = -1


@dataclass(eq=False, slots=True)
class LoaderCall:
    """A call of a loader, which has returned a batch or an iterator, or has raised.

    Attributes
    ----------
    source
        The pass to which it belongs.
    began_ns
        When it was called, as ``time.perf_counter_ns()``.
    spent_ns
        How long it took, without phases within it.
    spans
        The numbers of the GPU's spans within it: the first, and the one after the last.
    in_window
        Whether the first iteration of the cell had begun.
    window
        Number of the optimizer step that followed it.
    samples
        Number of samples of the batch; 0 or less if unknown.
    number
        Number of the batch in its pass.
    storages
        References to the memory of the batch's tensors, by their addresses.
    evaluated, trained
        Whether the batch was used by a forward that does not train, or by one that does.
    counted
        Whether a step that has ended has counted it.
    """

    source: LoaderPass
    began_ns: int = 0
    spent_ns: int = 0
    spans: tuple[int, int] = (0, 0)
    in_window: bool = False
    window: int = 0
    samples: int = 0
    number: int = 0
    storages: dict[int, Any] = field(default_factory=dict)
    evaluated: bool = False
    trained: bool = False
    counted: bool = False

    @property
    def is_for_evaluation(self) -> bool:
        """Whether the time was spent for an evaluation, as far as is known now.

        A batch that was not used, because it was skipped or read ahead, is as the others of
        its pass.
        """
        if self.trained or self.evaluated:
            return not self.trained
        return self.source.evaluated and not self.source.trained
