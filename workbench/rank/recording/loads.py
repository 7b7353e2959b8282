"""Calls of data loaders: their durations, and the use of their batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class LoaderPass:
    """One pass over a loader, by one iterator.

    Attributes
    ----------
    trained, evaluated
        Whether a batch of the pass was used for training, or by a forward that does not train.
    ended
        Whether the pass has no further batches.
    yielded
        Number of batches that the pass has returned.
    length
        Number of all batches of the pass; 0 if unknown, and negative until it was determined.
    """

    trained: bool = False
    evaluated: bool = False
    ended: bool = False
    yielded: int = 0
    length: int = -1


@dataclass(eq=False, slots=True)
class LoaderCall:
    """A call of a loader that has returned a batch or an iterator, or has raised.

    Attributes
    ----------
    source
        The pass of the call.
    began_ns
        Begin of the call, as ``time.perf_counter_ns()``.
    spent_ns
        Duration of the call without nested phases.
    spans
        Half-open range of the numbers of the GPU's spans within the call.
    in_window
        Whether the first iteration of the cell had begun.
    window
        Number of the optimizer step that followed the call.
    samples
        Number of samples of the batch; 0 or less if unknown.
    number
        Number of the batch in its pass.
    storages
        References to the memory of the batch's tensors, by their addresses.
    evaluated, trained
        Whether a forward that does not train, or a training forward, has used the batch.
    counted
        Whether a finished step has counted the batch.
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
        """Whether the time was spent for an evaluation, by the information so far.

        An unused batch, which was skipped or read ahead, counts like the others of its pass.
        """
        if self.trained or self.evaluated:
            return not self.trained
        return self.source.evaluated and not self.source.trained
