"""The largest batch that fits into memory, found by trying."""

from __future__ import annotations

import gc
from collections.abc import Callable

from workbench.errors import UsageError
from workbench.ranks import checked_int


def largest_batch(step: Callable[[int], object], most: int = 1 << 16) -> int:
    """Return the largest batch with which a training step does not run out of memory.

    The batch is doubled until a step fails, then bisected. The step runs once for each batch
    that is tried, about 2 log2(result) times; it should do all that an iteration does (forward,
    backward, `optimizer.step()`), because the optimizer's state needs memory from the first
    step on.

    Parameters
    ----------
    step
        Runs one iteration with a batch of that many samples, on the device to be tried.
    most
        Largest batch to try.

    Raises
    ------
    UsageError
        A batch of one sample does not fit.
    """
    checked_int(most, "most", 1)
    fits, fails = 0, most + 1
    batch = 1
    while fails - fits > 1:
        if _fits(step, batch):
            fits = batch
        else:
            fails = batch
        batch = min(2 * fits, most) if fails > most else (fits + fails) // 2
    if not fits:
        raise UsageError(
            "largest_batch: a batch of one sample does not fit into memory. Use a smaller model "
            "or a GPU with more memory."
        )
    return fits


def _fits(step: Callable[[int], object], batch: int) -> bool:
    """Return whether a step succeeds; free what one that fails has allocated."""
    try:
        step(batch)
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
    else:
        return True
    _free()
    return False


def _out_of_memory(error: Exception) -> bool:
    """Return whether an error is PyTorch's, of a GPU or of the CPU, for lack of memory."""
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator: " in str(error)


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
