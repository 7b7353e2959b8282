"""Hooks in data loaders that report how long the training loop waits for a batch.

The hooks cover the iterators of PyTorch's DataLoader, of its subclasses, and of several other
libraries. `named` wraps any other iterable. An iterator is asked for a batch exactly when the
loop asks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, dataloader

from workbench.rank.after_import import after_import
from workbench.rank.recording.guard import Guard
from workbench.rank.recording.patches import Function, Hooks
from workbench.rank.recording.recorder import Recorder

_LIBRARIES: dict[str, dict[str, tuple[str, ...]]] = {
    "accelerate.data_loader": {
        "DataLoaderShard": ("__iter__",),
        "DataLoaderDispatcher": ("__iter__",),
        "SkipDataLoader": ("__iter__",),
    },
    "torchdata.nodes.loader": {"Loader": ("__iter__",)},
    "datasets.arrow_dataset": {"Dataset": ("__iter__", "iter")},
    "datasets.iterable_dataset": {"IterableDataset": ("__iter__", "iter")},
    "webdataset.pipeline": {"DataPipeline": ("__iter__",)},
    "ffcv.loader.loader": {"Loader": ("__iter__",)},
    "nvidia.dali.plugin.base_iterator": {"_DaliBaseIterator": ("__iter__",)},
}
"""Methods that return iterators over batches, by module and class."""


class LoaderHooks(Hooks):
    """Reports to a `Recorder` when the training loop asks a loader for a batch."""

    kind = "data loading"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._watched: set[str] = set()

    def install(self) -> None:
        """Start recording."""
        self.replace(dataloader._BaseDataLoaderIter, "__next__", self._next)
        self.replace(DataLoader, "__iter__", self._iter)
        self.replace(DataLoader, "__init__", self._new_loader)
        for module, classes in _LIBRARIES.items():
            if module in sys.modules:
                self._install_library(classes, sys.modules[module])
            elif module not in self._watched:
                self._watched.add(module)
                after_import(module, partial(self._imported, classes))

    def begin_cell(self) -> None:
        """Find the subclasses of DataLoader that were defined while recording was off."""
        if self._recorder.on:
            self._find_subclasses(DataLoader)

    def end_cell(self) -> None:
        """Forget the classes that the cell has defined."""
        if self._recorder.on:
            self.remove()
            self.install()

    def _imported(self, classes: dict[str, tuple[str, ...]], module: Any) -> None:
        if self._recorder.on:
            self._install_library(classes, module)

    def _install_library(self, classes: dict[str, tuple[str, ...]], module: Any) -> None:
        for name, methods in classes.items():
            for method in methods:
                if hasattr(owner := getattr(module, name, None), method):
                    self.replace(owner, method, self._iter)

    def _find_subclasses(self, loader_class: type[Any]) -> None:
        for subclass in loader_class.__subclasses__():
            self._watch_class(subclass)
            self._find_subclasses(subclass)

    def _watch_class(self, loader_class: type[Any]) -> None:
        """Replace a subclass's own ``__iter__``."""
        for owner in loader_class.__mro__:
            if owner is DataLoader:
                return
            if "__iter__" in vars(owner):
                self.replace(owner, "__iter__", self._iter)

    def _new_loader(self, original: Function) -> Function:
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - its name
            if type(self_) is not DataLoader:
                self._watch_class(type(self_))
            original(self_, *args, **kwargs)

        return __init__

    def _iter(self, original: Function) -> Function:
        """Return a method that records its own duration, and later the calls of its iterator."""
        recorder = self._recorder

        def __iter__(loader: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - its name
            loop = recorder.loop
            load = loop.load_begins()
            if load is None:  # in another thread, or of a loader that another one uses
                return original(loader, *args, **kwargs)
            try:
                iterator = original(loader, *args, **kwargs)
            finally:
                loop.load_ends(load)
            iterator = self._recorded(iterator, getattr(loader, "_index_sampler", None))
            loop.iterator_made(load, iterator)
            return iterator

        return __iter__

    def _recorded(self, iterator: Any, sampler: Any) -> Any:
        """Return the iterator or a wrapper with the same batches; its calls are recorded."""
        kind = type(iterator)
        if kind is _Pass:
            return iterator
        if isinstance(iterator, Iterator) and _is_of_python(kind):
            owner = next(base for base in kind.__mro__ if "__next__" in vars(base))
            self.replace(owner, "__next__", self._next)
            return iterator
        return _Pass(self._recorder, self.guard, iterator, sampler)

    def _next(self, original: Function) -> Function:
        recorder = self._recorder
        guard = self.guard

        def __next__(iterator: Any) -> Any:  # noqa: N807 - replaces a function of that name
            return _ask(recorder, guard, iterator, original)

        return __next__


class NamedIterable:
    """Wraps an iterable and records its batches; all other attributes are the iterable's."""

    def __init__(self, recorder: Recorder, iterable: Iterable[Any]) -> None:
        self._recorder = recorder
        self._guard = Guard(LoaderHooks.kind, recorder.failed)
        self._iterable = iterable

    def __iter__(self) -> _Pass:
        loop = self._recorder.loop
        call = self._guard.call
        load = call(loop.load_begins) if self._recorder.on else None
        if load is None:
            return _Pass(self._recorder, self._guard, iter(self._iterable))
        try:
            iterator = iter(self._iterable)
        finally:
            call(loop.load_ends, load)
        # a DataLoader is as long as its sampler; its own `__len__` would note the call
        sampler = getattr(self._iterable, "_index_sampler", self._iterable)
        recorded = _Pass(self._recorder, self._guard, iterator, sampler)
        call(loop.iterator_made, load, recorded)
        return recorded

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, "_iterable", name)


class SizedNamedIterable(NamedIterable):
    """A named iterable with a length, such as a list of batches."""

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # it has one


def named(recorder: Recorder, iterable: Any) -> Any:
    """Return an iterable with the same batches; its calls are recorded."""
    if hasattr(iterable, "__next__"):
        return _Pass(recorder, Guard(LoaderHooks.kind, recorder.failed), iterable)
    return (SizedNamedIterable if hasattr(iterable, "__len__") else NamedIterable)(
        recorder, iterable
    )


class _Pass:
    """An iterator over the batches of another iterator; its calls are recorded.

    Parameters
    ----------
    sampler
        Has as many items as there are batches; None if that is unknown.
    """

    def __init__(
        self, recorder: Recorder, guard: Guard, iterator: Any, sampler: Any = None
    ) -> None:
        self._recorder = recorder
        self._guard = guard
        self._iterator = iterator
        self._index_sampler = sampler

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        return _ask(self._recorder, self._guard, self, lambda _: next(self._iterator))

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, "_iterator", name)


def _attribute(wrapper: Any, wrapped: str, name: str) -> Any:
    """Return an attribute of the object that a wrapper stands for."""
    if wrapped not in vars(wrapper):  # a copy that is being made
        raise AttributeError(name)
    return getattr(vars(wrapper)[wrapped], name)


def _ask(recorder: Recorder, guard: Guard, iterator: Any, ask: Callable[[Any], Any]) -> Any:
    """Return the next batch of an iterator, and record the call."""
    loop = recorder.loop
    load = guard.call(loop.load_begins, iterator) if recorder.on else None
    if load is None:
        return ask(iterator)
    returned: tuple[Any, ...] = ()
    try:
        returned = (ask(iterator),)
        return returned[0]
    except StopIteration:
        guard.call(loop.loader_ended, load)
        raise
    finally:
        guard.call(loop.load_ends, load, iterator, *returned)


def _is_of_python(kind: type[Any]) -> bool:
    """Return whether ``__next__`` of a class is a function of Python, which can be replaced."""
    return callable(getattr(kind, "__next__", None)) and hasattr(kind.__next__, "__code__")
