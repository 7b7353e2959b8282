"""Sizes of real models: parameters, what autograd keeps, operations; and the largest batch."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import workbench as wb
from workbench.fabric import largest_batch, measure_model, plan


def test_a_linear_layer():
    """It keeps its input; a product of 100 x 10 numbers takes 2,000 operations per sample."""
    size = measure_model(nn.Linear(100, 10), torch.zeros(8, 100))
    assert (size.parameters, size.trainable) == (1_010, 1_010)
    assert size.activation_bytes == 400
    assert size.forward_flop == 2_000


def test_a_tensor_that_two_layers_keep_counts_once():
    """ReLU keeps its output, which is the next layer's input."""
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    assert measure_model(model, torch.zeros(4, 100)).activation_bytes == 4 * (100 + 50)


def test_frozen_parameters_have_no_gradient():
    """They need memory, but no communication."""
    model = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 10))
    model[0].requires_grad_(requires_grad=False)
    made = plan(model)
    assert made["parameters"].value == 5_560
    assert made["gradients"].value == 510 * 4
    assert made["memory of parameters"].value == 5_560 * 4


def test_a_convolution():
    """2 × kernel × channels in and out × positions."""
    size = measure_model(nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 10, 10))
    assert size.forward_flop == 2 * 9 * 3 * 8 * 64


def test_arguments_by_position_and_by_name():
    """A tuple and a dict; the first dimension counts the samples."""
    model = nn.Bilinear(10, 20, 5)
    one, two = torch.zeros(6, 10), torch.zeros(6, 20)
    by_position = measure_model(model, (one, two))
    assert by_position == measure_model(model, {"input1": one, "input2": two})
    assert by_position.activation_bytes == 4 * 30


def test_a_model_of_any_size_without_memory():
    """On the device "meta": the encoder of BERT-Large."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
        model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        example = torch.zeros(2, 512, 1024)
    size = measure_model(model, example)
    assert size.parameters == 302_309_376
    # Each layer: 12 d² products per token, and two products of tokens by tokens
    products = 24 * (12 * 1024**2 * 512 + 2 * 512**2 * 1024)
    assert size.forward_flop == pytest.approx(2 * products, rel=1e-3)


def test_the_model_is_unchanged():
    """Running means, random state and gradients."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = [buffer.clone() for buffer in model.buffers()]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    measure_model(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize(
    ("model", "example", "words"),
    [
        (nn.Linear(4, 2), torch.zeros(3, 5), "example: the model raised RuntimeError"),
        (nn.Linear(4, 2), torch.tensor(1.0), "no tensor with a first dimension"),
        (nn.Linear(4, 2), torch.zeros(0, 4), "no tensor with a first dimension"),
        (nn.Linear(4, 2), "text", "no tensor with a first dimension"),
        (nn.LazyLinear(2), torch.zeros(3, 5), "Run the model on one batch first"),
        (nn.ReLU(), torch.zeros(3, 5), "trainable parameters of the model"),
    ],
)
def test_what_is_no_batch_or_no_model(model, example, words):
    """The error says what to give."""
    with pytest.raises(wb.UsageError) as raised:
        plan(model, example=example)
    assert words in str(raised.value)


FINDER = """
import resource, sys, torch
from workbench.fabric import largest_batch
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, -1))
tried = []
def step(batch):
    tried.append(batch)
    kept = torch.empty(batch, 1_000_000, dtype=torch.int8)
print(largest_batch(step), len(tried))
"""


def test_the_largest_batch_that_fits():
    """About 100 samples of a megabyte, in a process that may use 100 MB more."""
    done = subprocess.run(
        [sys.executable, "-c", FINDER], capture_output=True, text=True, check=True
    )
    found, tried = map(int, done.stdout.split())
    assert 50 < found <= 100
    assert tried <= 16


def test_the_largest_batch_is_exact():
    """Bisected to the sample, and not beyond the limit."""
    tried = []

    def step(batch, most):
        tried.append(batch)
        if batch > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    for most in (1, 2, 77):
        assert largest_batch(lambda batch, most=most: step(batch, most)) == most
    assert largest_batch(lambda _: None, most=100) == 100
    assert max(tried) <= 128


def test_errors_of_the_step():
    """An error that is not for lack of memory is the user's; nothing fits is said."""
    with pytest.raises(RuntimeError, match="shapes"):
        largest_batch(lambda _: torch.zeros(2, 3) @ torch.zeros(2, 3))

    def nothing_fits(_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(wb.UsageError, match="a batch of one sample does not fit"):
        largest_batch(nothing_fits)
