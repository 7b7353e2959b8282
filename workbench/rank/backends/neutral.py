"""Runs this package's collectives without the modes that a cell has set for its thread.

The default dtype applies to the whole process. Therefore tensors of this package name their dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def neutral() -> Iterator[None]:
    """Run the body without a default device, gradients, inference mode and modes of the user.

    Only the calling thread is affected, because other threads may train.

    Examples
    --------
    >>> with torch.inference_mode(), neutral():
    ...     print(torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    False False
    """
    with (
        torch._C.DisableTorchFunction(),  # the default device is a mode of functions
        torch._C._DisableTorchDispatch(),
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):
        yield
