"""Measurement of a model: the parameters, activations and operations of a training iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model, counted in the model or measured with one batch.

    Attributes
    ----------
    parameters
        Number of parameters.
    trainable
        Number of parameters that have a gradient.
    activation_bytes
        Memory that autograd keeps for the backward, per sample; None if not measured. It is
        the size of the tensors that a forward saves, without parameters and buffers. Each storage
        is counted once.
    forward_flop
        Floating-point operations of a forward, per sample; None if not measured. An addition
        and a multiplication count as two operations. `torch.utils.flop_counter` counts only
        matrix products, convolutions and attention.

    Examples
    --------
    >>> ModelSize(25_557_032, 25_557_032, forward_flop=8.2e9).training_flop
    24600000000.0
    """

    parameters: int
    trainable: int
    activation_bytes: float | None = None
    forward_flop: float | None = None

    @property
    def training_flop(self) -> float | None:
        """Operations of an iteration, per sample. A backward counts as two forwards."""
        return None if self.forward_flop is None else 3 * self.forward_flop


def measure_model(model: torch.nn.Module, example: Any = None) -> ModelSize:
    """Count a model's parameters and, with an example batch, measure a forward.

    Afterwards, the model's buffers (such as the running means of a BatchNorm) and PyTorch's
    random state are restored. A model and an example of any size on the device ``"meta"`` need no
    memory.

    Parameters
    ----------
    model
        The model, on any device.
    example
        Input of one batch: a tensor, a tuple of positional arguments or a dict of keyword
        arguments. The first dimension of its first tensor is the number of samples.

    Raises
    ------
    UsageError
        A parameter of the model has no shape yet, or the example is not a batch of the model.

    Examples
    --------
    >>> import torch
    >>> measure_model(torch.nn.Linear(10, 2))
    ModelSize(parameters=22, trainable=22, activation_bytes=None, forward_flop=None)
    """
    from torch.nn.parameter import is_lazy

    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise UsageError(
            f"{type(model).__name__}: some parameters have no shape yet. Run the model on one "
            "batch first, so that its lazy modules create them."
        )
    count = sum(parameter.numel() for parameter in parameters)
    trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    if example is None:
        return ModelSize(count, trainable)
    arguments, options = _arguments(example)
    samples = _samples([*arguments, *options.values()])
    saved, flop = _measure_forward(model, arguments, options)
    return ModelSize(count, trainable, saved / samples, flop / samples)


def _arguments(example: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(example, Mapping):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


def _samples(values: Sequence[Any]) -> int:
    """Return the number of samples: the first dimension of the first tensor."""
    for value in values:
        shape: Sequence[int] = getattr(value, "shape", ())
        if len(shape) > 0 and shape[0] > 0:
            return int(shape[0])
    raise UsageError(
        "example: holds no tensor with a first dimension. Give the input of one batch, such as "
        "torch.zeros(32, 3, 224, 224)."
    )


def _measure_forward(
    model: torch.nn.Module, arguments: Sequence[Any], options: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the bytes that a forward saves for the backward, and its number of operations."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model_storages = {_storage(tensor)[0] for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, tuple[int, Any]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key, size = _storage(tensor)
        if key not in model_storages:
            saved[key] = size, tensor  # The reference prevents reuse of the storage's address.
        return tensor

    counter = FlopCounterMode(display=False)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with _unchanged(model), torch.enable_grad(), hooks, counter:
        try:
            model(*arguments, **options)
        except (TypeError, RuntimeError, ValueError, IndexError) as error:
            raise UsageError(
                f"example: the model raised {type(error).__name__}: {error}. Give the input of one "
                "batch, on the device of the model: a tensor, a tuple of arguments or a dict."
            ) from error
    return sum(size for size, _ in saved.values()), counter.get_total_flops()


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the identity and the size in bytes of a tensor's storage, also on the meta device."""
    storage = tensor.untyped_storage()
    # All storages on the meta device have the address 0, so the identity is the C++ object.
    return storage._cdata, storage.nbytes()


@contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random state of the CPU and of the model's GPUs."""
    import torch

    saved_buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in saved_buffers:
                    buffer.copy_(value)
