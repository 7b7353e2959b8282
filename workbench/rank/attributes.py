"""Names of attributes of a rank's objects, found without running any code of the user.

A property, `__getattr__`, `__dir__` or `__getattribute__` of the user's classes could take long,
change something, or start a collective. Only dictionaries of objects and classes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from torch import nn

from workbench.rank.interrupts import Interrupts
from workbench.wire import Message
from workbench.wire.completion_messages import Attributes, AttributesRequest

_MAX = 3000
_OF_MODULES = ("_parameters", "_buffers", "_modules")
"""Dictionaries of a torch.nn.Module whose entries are its attributes."""
_PLAIN = (FunctionType, type, ModuleType)
"""Types of attributes that are used although they may be descriptors: these run no code."""
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
        """Handle a request; return whether the message is one."""
        if not isinstance(message, AttributesRequest):
            return False
        names: Iterable[str] = ()
        if self._interrupts.cell is None:
            names = attribute_names(self._shell.user_ns, message.path)
        self._send(Attributes(message.number, tuple(names)))
        return True


def attribute_names(namespace: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the sorted names of an object's attributes; none if it cannot be found safely."""
    try:
        value = namespace[path[0]]
        for name in path[1:]:
            value = _attribute(value, name)
    except LookupError:
        return []
    names: set[Any] = set()
    for entries in _dictionaries(value):
        names.update(list(entries))
    return sorted(name for name in names if type(name) is str and name.isidentifier())[:_MAX]


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute; raise LookupError if there is none that needs no code."""
    for entries in _dictionaries(value):
        if name in entries:
            found = entries[name]
            if type(found) in _PLAIN or not _is_descriptor(found):
                return found
            break
    raise LookupError(name)


def _is_descriptor(value: Any) -> bool:
    return any("__get__" in vars_of(one) for one in _mro(type(value)))


def _dictionaries(value: Any) -> list[Any]:
    """Return the dictionaries with the attributes of an object, those of its classes last."""
    own = _own(value)
    found = [own]
    if isinstance(own, dict) and issubclass(type(value), nn.Module):
        found += [own[name] for name in _OF_MODULES if isinstance(own.get(name), dict)]
    if issubclass(type(value), type):
        found += [vars_of(one) for one in _mro(value)]
    return found + [vars_of(one) for one in _mro(type(value))]


def _own(value: Any) -> Any:
    """Return the dictionary of an object; an empty one if it has none, or one of its own making."""
    for one in _mro(type(value)):
        if "__dict__" in vars_of(one):
            entry = vars_of(one)["__dict__"]
            if type(entry) is GetSetDescriptorType:
                return entry.__get__(value)
            break
    return value.__dict__ if type(value) is ModuleType else {}


vars_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
"""Returns the dictionary of a class, whatever its metaclass defines."""
