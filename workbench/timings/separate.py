"""A training whose ranks exchange no gradients, so that each of them has a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.ranks import phrase

MIN_ITERATIONS = 3
"""Fewer iterations of a cell may be a part of a training that exchanges something later."""
NAME = "gradients that are not exchanged"
"""Name of the cause in a verdict."""
NO_GRADIENT = "no gradient was exchanged"
_HOROVOD = (
    "wrap the optimizer with hvd.DistributedOptimizer(...). Scripts for torchrun, accelerate or "
    "Lightning need %cluster start --backend ddp"
)
_DDP = (
    "wrap the model with torch.nn.parallel.DistributedDataParallel(model), and call the wrapped "
    "model"
)


@dataclass(frozen=True)
class SeparateTraining:
    """A cell in which each rank has trained on its own.

    Attributes
    ----------
    cell
        Number of the cell.
    iterations
        Number of its iterations, on the rank with the fewest.
    ranks
        Number of ranks.
    backend
        Name of the backend that connects them.
    """

    cell: int
    iterations: int
    ranks: int
    backend: str

    @property
    def evidence(self) -> str:
        """What was observed."""
        return (
            f"{NO_GRADIENT} in {self.iterations:,} iterations on {phrase(range(self.ranks))}: each "
            "rank trains a model of its own"
        )

    @property
    def change(self) -> str:
        """What to do to train one model."""
        return f"to train one model, {_DDP if self.backend == 'ddp' else _HOROVOD}"

    def __str__(self) -> str:
        """Return both in sentences."""
        texts = (self.evidence, self.change)
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts)


def find_separate(
    cell: int, iterations: Mapping[int, int], ranks: int, backend: str
) -> SeparateTraining | None:
    """Return the training of a cell if each of the cluster's ranks has trained on its own.

    Parameters
    ----------
    iterations
        The `separate_iterations` with which the cell has ended, by rank.
    ranks
        Number of ranks of the cluster.
    """
    if ranks < 2 or set(iterations) != set(range(ranks)):
        return None
    fewest = min(iterations.values())
    if fewest < MIN_ITERATIONS:
        return None
    return SeparateTraining(cell, fewest, ranks, backend)
