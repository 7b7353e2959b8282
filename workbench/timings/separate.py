"""Detects cells without exchanged gradients, where each rank trains a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.ranks import phrase

MIN_ITERATIONS = 3
"""Minimum number of iterations. A shorter cell may be the beginning of a training that exchanges
gradients later."""
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
    """A cell where each rank has trained on its own.

    Attributes
    ----------
    cell
        Number of the cell.
    iterations
        Number of iterations of the cell, on the rank with the fewest.
    ranks
        Number of ranks.
    backend
        Name of the backend that connects the ranks.
    """

    cell: int
    iterations: int
    ranks: int
    backend: str

    @property
    def evidence(self) -> str:
        """The observation, as a text."""
        return (
            f"{NO_GRADIENT} in {self.iterations:,} iterations on {phrase(range(self.ranks))}: each "
            "rank trains a model of its own"
        )

    @property
    def change(self) -> str:
        """The change that makes the ranks train one model, as a text."""
        return f"to train one model, {_DDP if self.backend == 'ddp' else _HOROVOD}"

    def __str__(self) -> str:
        """Return the evidence and the change as sentences."""
        texts = (self.evidence, self.change)
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts)


def find_separate(
    cell: int, iterations: Mapping[int, int], ranks: int, backend: str
) -> SeparateTraining | None:
    """Return a `SeparateTraining` if each of the cluster's ranks has trained on its own, or None.

    Parameters
    ----------
    iterations
        The `separate_iterations` that each rank reported at the end of the cell, by rank.
    ranks
        Number of ranks of the cluster.

    Examples
    --------
    >>> training = find_separate(7, {0: 12, 1: 10}, ranks=2, backend="ddp")
    >>> training.iterations
    10
    >>> find_separate(7, {0: 12, 1: 0}, ranks=2, backend="ddp") is None
    True
    """
    if ranks < 2 or set(iterations) != set(range(ranks)):
        return None
    fewest = min(iterations.values())
    if fewest < MIN_ITERATIONS:
        return None
    return SeparateTraining(cell, fewest, ranks, backend)
