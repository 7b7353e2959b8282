"""Names of attributes of a rank's objects, read without running any code of the user.

A property, `__getattr__`, `__dir__` or `__getattribute__` of the user's classes could take long,
change state, or start a collective. Therefore only dictionaries of objects and classes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from torch import nn

from workbench.rank.interrupts import Interrupts
from workbench.wire import Message
from workbench.wire.completion_messages import Attributes, AttributesRequest

_MAX_NAMES = 3000
_MODULE_DICTIONARIES = ("_parameters", "_buffers", "_modules")
"""Dictionaries of a torch.nn.Module with parameters, buffers and modules as attributes."""
_SAFE_DESCRIPTORS = (FunctionType, type, ModuleType)
"""Types of attributes that may be descriptors, but run no code of the user."""
_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


class AttributeNames:
    """Answers requests for names of attributes, in the thread that receives messages.

    Parameters
    ----------
    shell
        The engine's IPython shell, whose namespace has the variables.
    """

    def __init__(self, shell: Any, send: Callable[[Message], None], interrupts: Interrupts) -> None:
        self._shell = shell
        self._send = send
        self._interrupts = interrupts

    def receive(self, message: Message) -> bool:
        """Handle a request; return whether the message is a request for names."""
        if not isinstance(message, AttributesRequest):
            return False
        names: Iterable[str] = ()
        if self._interrupts.cell is None:
            names = attribute_names(self._shell.user_ns, message.path)
        self._send(Attributes(message.number, tuple(names)))
        return True


def attribute_names(namespace: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the sorted names of an object's attributes.

    Parameters
    ----------
    namespace
        The variables of the shell.
    path
        The name of a variable, then names of attributes that lead to the object.

    Returns
    -------
    list
        At most 3000 names; empty if the object cannot be reached without running code.

    Examples
    --------
    >>> class Point:
    ...     def __init__(self):
    ...         self.x = 1
    >>> names = attribute_names({"point": Point()}, ("point",))
    >>> "x" in names
    True
    >>> attribute_names({}, ("point",))
    []
    """
    try:
        value = namespace[path[0]]
        for name in path[1:]:
            value = _attribute(value, name)
    except LookupError:
        return []
    names: set[Any] = set()
    for entries in _dictionaries(value):
        names.update(list(entries))
    return sorted(name for name in names if type(name) is str and name.isidentifier())[:_MAX_NAMES]


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute; raise LookupError if reading it would run code of the user."""
    for entries in _dictionaries(value):
        if name in entries:
            attribute = entries[name]
            if type(attribute) in _SAFE_DESCRIPTORS or not _is_descriptor(attribute):
                return attribute
            break
    raise LookupError(name)


def _is_descriptor(value: Any) -> bool:
    return any("__get__" in vars_of(cls) for cls in _mro(type(value)))


def _dictionaries(value: Any) -> list[Any]:
    """Return the dictionaries with the attributes of an object, then those of its classes."""
    instance_dict = _instance_dict(value)
    dictionaries = [instance_dict]
    if isinstance(instance_dict, dict) and issubclass(type(value), nn.Module):
        dictionaries += [
            instance_dict[name]
            for name in _MODULE_DICTIONARIES
            if isinstance(instance_dict.get(name), dict)
        ]
    if issubclass(type(value), type):
        dictionaries += [vars_of(cls) for cls in _mro(value)]
    return dictionaries + [vars_of(cls) for cls in _mro(type(value))]


def _instance_dict(value: Any) -> Any:
    """Return an object's ``__dict__``.

    The result is an empty dict if the object has none, or if its class overrides ``__dict__``.
    """
    for cls in _mro(type(value)):
        if "__dict__" in vars_of(cls):
            descriptor = vars_of(cls)["__dict__"]
            if type(descriptor) is GetSetDescriptorType:
                return descriptor.__get__(value)
            break
    # the `__dict__` of `ModuleType` is no GetSetDescriptorType, but runs no code of the user
    return value.__dict__ if type(value) is ModuleType else {}


vars_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
"""Return the dictionary of a class, even if its metaclass defines ``__dict__``."""
