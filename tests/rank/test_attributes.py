"""Names of attributes are found without running any code of the user's classes."""

import sys
from types import ModuleType
from typing import ClassVar

import pytest
import torch

from workbench.rank.attributes import attribute_names


class Hostile:
    """A class each of whose hooks ends the test."""

    shared: ClassVar = {"a": 1}

    def __init__(self):
        self.own = torch.nn.Linear(2, 2)

    def __dir__(self):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError(name)

    def __getattribute__(self, name):
        raise AssertionError(name)

    @property
    def costly(self):
        raise AssertionError

    def method(self):
        """Do nothing."""


class Meta(type):
    """A metaclass each of whose hooks ends the test."""

    def __getattribute__(cls, name):
        raise AssertionError(name)

    def mro(cls):
        return type.mro(cls)


class FakeDict:
    """A class whose objects make their own dictionary."""

    @property
    def __dict__(self):
        raise AssertionError


class Slots:
    __slots__ = ("first", "second")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.register_buffer("mean", torch.zeros(1))
        self.scale = torch.nn.Parameter(torch.ones(1))


def names(value, *path):
    return attribute_names({"value": value}, ("value", *path))


def test_attributes_of_a_module():
    """Parameters, buffers and layers, as well as methods."""
    model = Net()
    assert {"layers", "mean", "scale", "parameters", "forward", "training"} <= set(names(model))
    assert {"append", "forward"} <= set(names(model, "layers"))
    assert "in_features" not in names(model)
    wrapped = torch.nn.ModuleDict({"net": model})
    assert "scale" in names(wrapped, "net")


def test_no_code_of_a_class_runs():
    value = Hostile()
    assert {"own", "shared", "costly", "method"} <= set(names(value))
    assert "in_features" in names(value, "own")
    assert "keys" in names(value, "shared")
    assert names(value, "costly") == []
    assert names(value, "nothing") == []
    assert "__defaults__" in names(value, "method")


def test_unusual_objects():
    """Metaclasses, slots, own dictionaries, classes and libraries."""
    kind = Meta("Kind", (), {"x": 1})
    assert "x" in names(kind)
    assert "x" in names(kind())
    assert "first" in names(Slots())
    assert names(Slots(), "first") == []
    assert "__class__" in names(FakeDict())
    assert "bit_length" in names(3)
    assert "nn" in names(torch)
    assert "Linear" in names(torch, "nn")
    assert "fromkeys" in names(dict)


def test_what_is_no_name():
    """Nothing is offered that could not be written after a dot."""
    module = ModuleType("odd")
    vars(module).update({"not a name": 1, "good": 2})
    assert "good" in names(module)
    assert "not a name" not in names(module)


@pytest.mark.parametrize("path", [("nothing",), ("value", "a", "b")])
def test_what_is_not_there(path):
    assert attribute_names({"value": sys}, path) == []
