"""Determines whether the ranks train separately, without any exchange of gradients.

A rank knows the size of its optimizers' parameters, and the bytes that its collectives have sent.
Communication that is not recorded makes the answer unknown.
"""

from __future__ import annotations

import sys
from typing import Any

from workbench.wire import Flag

_MAX_BYTES = 64
"""Collectives of an iteration up to this size, such as the average of a loss, are no gradients."""
_TIMES_SMALLER = 16
"""Minimum ratio of the size of the parameters to the size of such collectives."""
_MAX_UNRECORDED = 8
"""Unrecorded collectives of PyTorch's own code, for example at the start of a DDP model."""
_OTHER_LIBRARIES = ("mpi4py.MPI", "cupy.cuda.nccl", "byteps", "bagua", "ucp", "ucxx")
"""Modules for communication that is not recorded."""
UNKNOWN = -1


def limit_bytes(optimizer: Any) -> int:
    """Return the maximum size of an iteration's collectives without an exchange of gradients.

    Parameters
    ----------
    optimizer
        The optimizer of PyTorch that has stepped in the iteration.

    Returns
    -------
    int
        The size in bytes; `UNKNOWN` if the size of a parameter is unknown, as before a lazy
        module's first forward.

    Examples
    --------
    >>> import torch
    >>> limit_bytes(torch.optim.SGD(torch.nn.Linear(1000, 1000).parameters(), lr=0.1))
    64
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

    The sender's thread adds the records that it packs, and later the main thread reads the result.
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
            Number of collectives that the cell has started by the backend's count, recorded or not.
        """
        if cell != self._cell or self._exchanged or any(map(sys.modules.get, _OTHER_LIBRARIES)):
            return 0
        unrecorded = collectives - self._tensors
        if unrecorded > 0 and unrecorded >= min(_MAX_UNRECORDED, self._iterations):
            return 0
        return self._iterations
