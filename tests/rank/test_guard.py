"""An exception in our bookkeeping never ends a training, and changes none of its bits."""

import logging

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from workbench.output.sink import TextSink
from workbench.rank.recording.module_hooks import ModuleHooks
from workbench.rank.recording.phases import PhaseClock
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.torch_hooks import TorchHooks
from workbench.rank.recording.training_loop import TrainingLoop

METHODS = [
    (owner, name)
    for owner in (TrainingLoop, ModuleHooks, PhaseClock)
    for name, method in vars(owner).items()
    if callable(method) and not name.startswith("__")
]


def train():
    """Train a model; return its weights."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    return model.weight.detach().clone()


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=lambda one: getattr(one, "__name__", one))
def test_a_training_ends_as_without_recording(monkeypatch, caplog, owner, name):
    """The exception is logged with its traceback, and the user's functions are called once."""
    weights = train()
    recorder = Recorder(lambda _: True, lambda _: None)
    hooks = TorchHooks(recorder)
    recorder.begin_cell(1)
    hooks.install()
    try:
        raised = []

        def broken(*_, **__):
            raised.append(name)
            raise RuntimeError("planned")

        with monkeypatch.context() as patched:
            hooks.begin_cell()
            patched.setattr(owner, name, broken)
            with caplog.at_level(logging.ERROR):
                recorded = train()
    finally:
        hooks.end_cell()
        hooks.remove()
    assert torch.equal(recorded, weights)
    assert bool(recorder.failures) == bool(raised)
    assert bool(caplog.records) == bool(raised)
    assert all(record.exc_info[1].args == ("planned",) for record in caplog.records)


FAILS = """
import torch
from workbench.rank.recording.training_loop import TrainingLoop
def fails(*_, **__): raise RuntimeError("planned")
usual, TrainingLoop.backward_begins = TrainingLoop.backward_begins, fails
"""
TRAIN = """
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 8) * rank).pow(2).mean().backward()
    optimizer.step()
model.weight.tolist()
"""


def test_users_are_told_what_is_no_longer_recorded(fresh):
    """The cell trains and says so, and so do the views until the next cell, which is recorded."""
    cluster, frame = fresh
    weights = cluster.run(TRAIN.replace("torch.manual", "import torch\ntorch.manual", 1)).values
    recorded = len(frame())
    sentence = "Recording of the training loop has stopped on ranks 0-1: RuntimeError: planned."
    sink = TextSink()
    assert cluster.run(FAILS + TRAIN, sink=sink).values == weights
    assert sentence in sink.text
    assert cluster.timings.remark.startswith(sentence)
    before = len(frame())
    assert cluster.run("TrainingLoop.backward_begins = usual" + TRAIN).values == weights
    assert len(frame()) == before + recorded
    assert cluster.timings.remark == ""
