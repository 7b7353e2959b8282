"""The largest batch that fits into memory, found by trying."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

from workbench.errors import UsageError
from workbench.ranks import checked_int

_log = logging.getLogger(__name__)


def largest_batch(step: Callable[[int], object], most: int = 1 << 16) -> int:
    """Return the largest batch with which a training step does not run out of memory.

    The batch is doubled until a step runs out of memory; then the limit is found by bisection.
    The step runs once for each batch that is tried, about 2 log2(result) times. It should do a
    whole iteration (forward, backward, `optimizer.step()`), because the optimizer allocates its
    state in its first step.

    Parameters
    ----------
    step
        Called with a number of samples. Runs one iteration with a batch of that size, on the
        device that the training will use.
    most
        Largest batch to try.

    Raises
    ------
    UsageError
        A batch of one sample does not fit.

    Examples
    --------
    >>> def step(batch):
    ...     if batch > 100:
    ...         raise MemoryError
    >>> largest_batch(step)
    100
    """
    checked_int(most, "most", 1)
    largest_fitting = 0
    smallest_failing = most + 1
    batch = 1
    while smallest_failing - largest_fitting > 1:
        if _step_fits(step, batch):
            largest_fitting = batch
        else:
            smallest_failing = batch
        _log.debug(
            "batch of %d tried: at least %d fit, %d does not",
            batch,
            largest_fitting,
            smallest_failing,
        )
        batch = (
            min(2 * largest_fitting, most)
            if smallest_failing > most
            else (largest_fitting + smallest_failing) // 2
        )
    if not largest_fitting:
        raise UsageError(
            "largest_batch: a batch of one sample does not fit into memory. Use a smaller model "
            "or a GPU with more memory."
        )
    _log.info("largest batch: %d samples", largest_fitting)
    return largest_fitting


def _step_fits(step: Callable[[int], object], batch: int) -> bool:
    """Return whether a step fits into memory; after a failure, free what it has allocated."""
    try:
        step(batch)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
    else:
        return True
    _free_memory()
    return False


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that a GPU or the CPU has run out of memory."""
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator: " in str(error)


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
