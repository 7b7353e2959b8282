"""A small model, random batches, and the usual training loop."""

import functools
from contextlib import nullcontext

import torch
from torch import nn
from trainings.state import state

INPUTS, CLASSES = 12, 5


def net(width=24, depth=3):
    """Return a model of some layers, which each have a weight and a bias."""
    layers = []
    for number in range(depth):
        layers += [nn.Linear(width if number else INPUTS, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def batch(size=6):
    """Return random inputs and targets, other ones on each rank."""
    return torch.randn(size, INPUTS), torch.randint(0, CLASSES, (size,))


def sgd(model, lr=0.1, **options):
    """Return an optimizer that has a state."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, **options)


def loss_of(model, inputs=None, targets=None):
    """Return the loss of a batch, by default of a new one."""
    if inputs is None:
        inputs, targets = batch()
    return nn.functional.cross_entropy(model(inputs).float(), targets)


def train(model, optimizer, steps=4, *, loss=loss_of, before_step=lambda: None):
    """Train for some iterations, and return the state at the end."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        before_step()
        optimizer.step()
        losses.append(value.detach())
    return state([model], [optimizer], losses)


def accumulate(model, optimizer, sizes, unsynchronized=nullcontext):
    """Train with several backward passes for each step.

    Parameters
    ----------
    sizes
        How many backward passes each step has.
    unsynchronized
        A context for all of them but the last one of each step.
    """
    losses = []
    for size in sizes:
        optimizer.zero_grad()
        total = 0.0
        for number in range(size):
            with nullcontext() if number == size - 1 else unsynchronized():
                loss = loss_of(model) / size
                loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
    return state([model], [optimizer], losses)


def compiles(function):
    """Train without what earlier trainings have compiled, and count graphs."""

    @functools.wraps(function)
    def train_anew(ranks):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        try:
            found = function(ranks)
            breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            return {**found, "graphs": graphs, "graph breaks": breaks}
        finally:
            torch._dynamo.reset()

    return train_anew
