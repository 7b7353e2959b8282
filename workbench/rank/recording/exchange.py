"""Finds out whether the ranks train separately: no iteration exchanges its gradients.

A rank knows how large the parameters of its optimizers are, and what its collectives have sent.
What communicates in a way that is not recorded makes the answer unknown.
"""

from __future__ import annotations

import sys
from typing import Any

from workbench.wire import Flag

_MAX_BYTES = 64
"""Collectives of an iteration up to this size, such as the average of a loss, are no gradients."""
_TIMES_SMALLER = 16
"""By how much the parameters are at least larger than such collectives."""
_MAX_UNRECORDED = 8
"""Collectives of PyTorch's own code that are not recorded, such as those of a DDP model's start."""
_OTHER_LIBRARIES = ("mpi4py.MPI", "cupy.cuda.nccl", "byteps", "bagua", "ucp", "ucxx")
"""Modules with which cells may communicate, and which are not recorded."""
UNKNOWN = -1


def limit_bytes(optimizer: Any) -> int:
    """Return up to which size the collectives of an iteration exchange none of its gradients.

    Parameters
    ----------
    optimizer
        The optimizer of PyTorch that has stepped in the iteration.

    Returns
    -------
    int
        In bytes; `UNKNOWN` if the size of a parameter is unknown, as before a lazy module's first
        forward.
    """
    try:
        size = sum(
            parameter.numel() * parameter.element_size()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        )
    except Exception:  # noqa: BLE001 - a user's class of tensors or optimizers may raise anything
        return UNKNOWN
    return min(_MAX_BYTES, int(size) // _TIMES_SMALLER)


class CellExchange:
    """Counts the iterations of the newest cell, until one of them may have exchanged gradients.

    The sender's thread adds what it packs, and then the main thread asks for the result.
    """

    def __init__(self) -> None:
        self._cell = 0
        self._iterations = self._tensors = 0
        self._exchanged = False

    def add(self, cell: int, flags: int, limit_bytes: int, size_bytes: int, tensors: int) -> None:
        """Add an iteration, or collectives outside of iterations.

        Parameters
        ----------
        flags
            The `Flag` of the record.
        limit_bytes
            The result of the function of this name; ignored outside of iterations.
        size_bytes, tensors
            What the rank passed to collectives.
        """
        if cell != self._cell:
            self._cell = cell
            self._iterations = 0
            self._tensors = 0
            self._exchanged = False
        self._tensors += tensors
        if flags & Flag.OUTSIDE:
            # before the first iteration, ranks exchange their initial parameters
            self._exchanged |= self._iterations > 0 and size_bytes > _MAX_BYTES
            return
        self._iterations += 1
        self._exchanged |= bool(flags & Flag.UNHEARD) or size_bytes > limit_bytes

    def separate_iterations(self, cell: int, collectives: int) -> int:
        """Return the number of a cell's iterations if none of them exchanged gradients, else 0.

        Parameters
        ----------
        collectives
            How many the cell has started as the backend counts them, recorded or not.
        """
        if cell != self._cell or self._exchanged or any(map(sys.modules.get, _OTHER_LIBRARIES)):
            return 0
        unrecorded = collectives - self._tensors
        if unrecorded > 0 and unrecorded >= min(_MAX_UNRECORDED, self._iterations):
            return 0
        return self._iterations
