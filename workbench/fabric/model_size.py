"""What one training iteration of a model needs: parameters, activations, operations."""

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
        Number of those that have a gradient.
    activation_bytes
        Memory that autograd keeps for the backward, per sample; None if not measured. It is
        the size of all tensors that a forward saves, each storage once, without parameters
        and buffers.
    forward_flop
        Floating-point operations of a forward, per sample; None if not measured. An addition
        and a multiplication count as two (`torch.utils.flop_counter`, which counts matrix
        products, convolutions and attention only).
    """

    parameters: int
    trainable: int
    activation_bytes: float | None = None
    forward_flop: float | None = None

    @property
    def training_flop(self) -> float | None:
        """Operations of an iteration, per sample: a backward counts as two forwards."""
        return None if self.forward_flop is None else 3 * self.forward_flop


def measure_model(model: torch.nn.Module, example: Any = None) -> ModelSize:
    """Count a model's parameters; with an example batch, measure a forward too.

    The model is unchanged afterwards: its buffers (such as the running means of a BatchNorm)
    and PyTorch's random state are restored. A model and an example on the device ``"meta"``
    need no memory, whatever their size.

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
        A parameter of the model has no shape yet, or the example is no batch of the model.
    """
    from torch.nn.parameter import is_lazy

    parameters = list(model.parameters())
    if any(is_lazy(one) for one in parameters):
        raise UsageError(
            f"{type(model).__name__}: some parameters have no shape yet. Run the model on one "
            "batch first, so that its lazy modules create them."
        )
    count = sum(one.numel() for one in parameters)
    trainable = sum(one.numel() for one in parameters if one.requires_grad)
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
    """Return the bytes that a forward saves for the backward, and its operations."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    own = {_storage(one)[0] for one in (*model.parameters(), *model.buffers())}
    saved: dict[int, tuple[int, Any]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key, size = _storage(tensor)
        if key not in own:
            saved[key] = size, tensor  # kept, so that its storage's address is not used again
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
    """Return the identity and the bytes of a tensor's storage, on the meta device too."""
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


@contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random state of the CPU and of its GPUs."""
    import torch

    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {one.device for one in model.parameters() if one.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)
