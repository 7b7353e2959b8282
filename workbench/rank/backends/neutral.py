"""Runs our own collectives without the modes of PyTorch that a cell has set for its thread.

The default dtype is one of the whole process: our tensors name theirs instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def neutral() -> Iterator[None]:
    """Run the body without a default device, gradients, inference mode and modes of the user.

    Only the calling thread is affected: others may train.
    """
    with (
        torch._C.DisableTorchFunction(),  # the default device is a mode of functions
        torch._C._DisableTorchDispatch(),
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):
        yield
