"""Makes Horovod's optimizers usable in cells that are run again, and after the end of a ring.

Horovod never removes the hooks of an optimizer. If a cell that creates an optimizer is run again,
the parameters have the hooks of both optimizers. They would reduce each gradient twice with one
name. This module makes only the latest used optimizer reduce the gradient of a parameter.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from horovod.torch import optimizer as distributed
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from workbench.rank.recording.patches import Function, Patches

_HOROVOD = (distributed._DistributedOptimizer, distributed._DistributedAdasumOptimizer)


class NewestOptimizer(Patches):
    """Disables hooks of an optimizer while another one reduces their parameters.

    A new optimizer takes over its parameters from earlier optimizers. An earlier optimizer takes
    them back when its `zero_grad` is called. Hooks keep a reference to their optimizer, so that
    each ``id`` is unique.
    """

    def __init__(self) -> None:
        super().__init__()
        self._user: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._displaced: set[int] = set()

    def install(self) -> None:
        """Start disabling hooks, for optimizers that are created from now on."""
        # Horovod's classes copy these methods when an optimizer is created
        self.replace(distributed._DistributedOptimizer, "_make_hook", self._make_hook)
        self.replace(distributed._DistributedOptimizer, "zero_grad", self._zero_grad)

    def _make_hook(self, original: Function) -> Function:
        def make_hook(optimizer: Any, parameter: Any) -> Function:
            hook = original(optimizer, parameter)
            optimizer_id = id(optimizer)
            user = self._take(optimizer_id, parameter)

            def reduce(*gradients: Any) -> None:
                if user[0] == optimizer_id:
                    hook(*gradients)

            return reduce

        return make_hook

    def _zero_grad(self, original: Function) -> Function:
        def zero_grad(optimizer: Any, *args: Any, **options: Any) -> Any:
            optimizer_id = id(optimizer)
            if optimizer_id in self._displaced:
                self._displaced.discard(optimizer_id)
                for parameter in optimizer._requires_update:
                    self._take(optimizer_id, parameter)
            return original(optimizer, *args, **options)

        return zero_grad

    def _take(self, optimizer_id: int, parameter: Any) -> list[int]:
        """Make an optimizer the current one of a parameter; return a list with its id."""
        user: list[int] = self._user.setdefault(parameter, [optimizer_id])
        if user[0] != optimizer_id:
            self._displaced.add(user[0])
            user[0] = optimizer_id
        return user


@contextmanager
def copied() -> Iterator[None]:
    """Copy the methods that the body replaces to the classes of existing optimizers.

    ``hvd.DistributedOptimizer`` creates a class for each optimizer, with copies of the methods.
    """
    before = [(owner, dict(vars(owner))) for owner in _HOROVOD]
    yield
    changed = [
        (name, method, vars(owner)[name])
        for owner, methods in before
        for name, method in methods.items()
        if vars(owner)[name] is not method
    ]
    for class_ in _classes():
        for name, method, replacement in changed:
            if vars(class_).get(name) is method:
                setattr(class_, name, replacement)


def parameter_names() -> set[str]:
    """Return the names of the parameters that existing distributed optimizers reduce."""
    classes = set(_classes())
    if not classes:
        return set()
    optimizers = [candidate for candidate in gc.get_objects() if type(candidate) in classes]
    return {name for optimizer in optimizers for name in _names_of(optimizer)}


def _names_of(optimizer: Any) -> Iterable[str]:
    # an optimizer may lack them if its __init__ has raised an error
    names: dict[Any, str] = getattr(optimizer, "_parameter_names", {})
    return names.values()


def _classes(base: type[Any] = Optimizer) -> Iterator[type[Any]]:
    """Yield the classes that Horovod has created for existing optimizers."""
    for class_ in base.__subclasses__():
        if "skip_synchronize" in vars(class_) and class_ not in _HOROVOD:
            yield class_
        yield from _classes(class_)


def discard_handles(objects: Iterable[Any]) -> None:
    """Discard the unfinished step of every ``DistributedOptimizer`` among the objects.

    Otherwise its next step would wait for collectives of an ended ring.
    """
    for candidate in objects:
        # type(), because isinstance reads `__class__`, which may run code of a proxy
        if hasattr(type(candidate), "skip_synchronize") and hasattr(candidate, "_allreduce_delay"):
            _discard_handles(candidate)


def _discard_handles(optimizer: Any) -> None:
    """Reset an optimizer as Horovod's ``load_state_dict`` does."""
    optimizer._handles.clear()
    optimizer._synchronized = False
    optimizer._should_synchronize = True
    for parameter in optimizer._allreduce_delay:
        optimizer._allreduce_delay[parameter] = optimizer.backward_passes_per_step
    for group in getattr(optimizer, "_group_counts", {}):
        optimizer._group_counts[group] = 0
