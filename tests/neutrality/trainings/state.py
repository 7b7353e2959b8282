"""What two runs of a training must have in common, as digests."""

import hashlib
import random
from collections.abc import Mapping

import numpy as np
import torch


def seed(rank):
    """Seed all random numbers of a rank."""
    for function in (torch.manual_seed, random.seed, np.random.seed):
        function(1000 + rank)


def state(models, optimizers, losses, steps=None):
    """Return a digest for each part of a training's state.

    Parameters
    ----------
    models, optimizers
        All that were trained.
    losses
        One for each iteration.
    steps
        The number of iterations, if it is not that of the losses.

    Returns
    -------
    dict
        The number of iterations, and a digest for each other part.
    """
    parameters = [item for model in models for item in model.named_parameters()]
    buffers = [item for model in models for item in model.named_buffers()]
    parts = {
        "parameters": parameters + buffers,
        "gradients": [(name, parameter.grad) for name, parameter in parameters],
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "losses": losses,
        "random": [torch.get_rng_state(), random.getstate(), np.random.get_state()],
    }
    iterations = len(losses) if steps is None else steps
    return {"iterations": iterations, **{name: digest(part) for name, part in parts.items()}}


def digest(value):
    """Return the first 12 hexadecimal digits of the SHA-256 of a value with tensors in it."""
    hashed = hashlib.sha256()
    _add(hashed, value)
    return hashed.hexdigest()[:12]


def _add(hashed, value):
    if isinstance(value, torch.Tensor):
        _add_tensor(hashed, value.detach())
    elif isinstance(value, np.ndarray):
        hashed.update(value.tobytes())
    elif isinstance(value, Mapping):
        _add(hashed, list(value.items()))
    elif isinstance(value, (list, tuple)):
        hashed.update(f"{len(value)} of ".encode())
        for element in value:
            _add(hashed, element)
    else:
        hashed.update(repr(value).encode())


def _add_tensor(hashed, tensor):
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    hashed.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.is_sparse:
        _add(hashed, [tensor._indices(), tensor._values()])
    else:
        hashed.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
