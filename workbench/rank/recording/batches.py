"""The samples of an iteration, and its position in the pass of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from workbench.rank.recording.loads import LoaderCall, LoaderPass

_DIFFERENT = -1
_MAX_KEPT = 64
"""Maximum number of batches whose use is unknown; libraries read fewer batches ahead."""
_MAX_TENSORS = 16
"""Maximum number of inspected tensors of a batch or of a call."""
_MAX_DEPTH = 4


class BatchProgress(NamedTuple):
    """The samples and the batch of an optimizer step; 0 for unknown values.

    Attributes
    ----------
    samples
        Number of samples.
    batch, batches
        The number of the step's last batch in the DataLoader's pass, and the number of batches in
        the pass.
    """

    samples: int
    batch: int
    batches: int


NO_PROGRESS = BatchProgress(0, 0, 0)


class Batches:
    """Counts the samples that forwards of training use, between two optimizer steps.

    A forward uses the batch that shares memory with its arguments. Arguments that were computed
    from a batch share no memory with it. The batch is then the one with the same number of
    samples, or the only batch since the previous step. If several batches are possible, the number
    is unknown. Without a loader, the arguments of the first model count, because other models may
    compute with its output.
    """

    def __init__(self) -> None:
        self._sources: WeakKeyDictionary[Any, LoaderPass] = WeakKeyDictionary()
        self._kept: list[LoaderCall] = []
        """The latest batches, oldest first."""
        self._possible: LoaderCall | None = None
        """The batch of a forward in eval mode, which trains if a backward follows."""
        self._window = 0
        self._reset()

    def _reset(self) -> None:
        self._used: list[LoaderCall] = []
        self._unknown = False
        """Whether a forward has used an unknown subset of several batches."""
        self._model = self._samples = 0
        self._called: dict[int, StorageWeakRef] = {}
        """Memory of the arguments of closures."""

    def source(self, iterator: Any, *, begins: bool = False) -> LoaderPass:
        """Return the record of an iterator's pass.

        Parameters
        ----------
        begins
            Whether a pass begins; the iterator may have been used before.
        """
        try:
            source = self._sources.get(iterator)
            if source is None:
                source = self._sources[iterator] = LoaderPass()
        except TypeError:  # the iterator supports no weak references
            return LoaderPass()
        if begins:
            source.yielded = 0
            source.ended = False
        return source

    def loaded(self, batch: Any, iterator: Any, load: LoaderCall | None = None) -> None:
        """Note that an iterator has returned a batch."""
        source = self.source(iterator) if load is None else load.source
        load = load or LoaderCall(source)
        number = getattr(iterator, "_num_yielded", 0)
        load.number = number if type(number) is int and number else source.yielded + 1
        source.yielded = load.number
        if load.number == 1 or source.length < 0:
            source.length = _length(iterator)
        load.window = self._window
        load.samples = _samples(batch, iterator)
        load.storages = _references(batch)
        for earlier in self._kept:  # the loader has used the same memory again
            if not earlier.storages.keys().isdisjoint(load.storages):
                earlier.storages = {
                    key: value
                    for key, value in earlier.storages.items()
                    if key not in load.storages
                }
        self._kept.append(load)
        del self._kept[:-_MAX_KEPT]

    def copied(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that a tensor was copied to a device: a use of the copy is a use of its batch."""
        for load in self._sharing(original):
            load.storages |= _references(copy)

    def ended(self, source: LoaderPass) -> None:
        """Note the end of a pass: its evaluated batches will not be used for training."""
        source.ended = True

    def forward(
        self, model: int, arguments: Any, options: Any = None, *, in_step: bool = False
    ) -> None:
        """Note a forward of training of a model, by its `id`.

        Parameters
        ----------
        arguments, options
            The positional arguments and the keyword arguments.
        in_step
            Whether it runs in an optimizer's closure, which is called repeatedly.
        """
        self._end_possible()
        called = (arguments, options) if options else arguments
        if shared := self._sharing(called):
            for load in shared:
                self._train(load)
            return
        samples = _first_dimension_of_call(arguments, options)
        candidates = [load for load in self._kept if self._may_be_trained(load, samples)]
        same = [load for load in candidates if load.samples == samples > 0]
        fresh = [load for load in candidates if load.window == self._window]
        if same:
            self._train(same[-1])
        elif len(fresh) == 1:
            self._train(fresh[0])
        elif fresh:
            self._train_several(fresh, samples)
        elif not self._used and not self._unknown and self._model in (0, model):
            storages = _references(called) if in_step else {}
            if storages and storages.keys() <= self._called.keys():
                return  # the closure computes with the same samples again
            self._called |= storages
            self._model = model
            self._samples = _sum(self._samples, samples)

    def maybe_forward(self, arguments: Any, options: Any = None) -> None:
        """Note a forward in eval mode, with gradients: it trains only if a backward follows."""
        load = self._of_call(arguments, options)
        if load is not None and load is not self._possible:
            self._end_possible()
            if not load.trained:
                self._possible = load

    def backward(self) -> None:
        """Note a backward."""
        if self._possible is not None:
            load = self._possible
            self._possible = None
            self._train(load)

    def evaluated(self, arguments: Any = (), options: Any = None) -> None:
        """Note a forward without gradients."""
        load = self._of_call(arguments, options)
        if load is not None:
            load.evaluated = load.source.evaluated = True

    def take(self) -> BatchProgress:
        """Return the batches and samples that were used since the last call."""
        self._end_possible()
        if not (self._used or self._unknown or self._samples):  # no forward was seen
            fresh = [
                load
                for load in self._kept
                if load.window == self._window and not (load.trained or load.is_for_evaluation)
            ]
            if len(fresh) == 1:
                self._train(fresh[0])
        progress = self._progress()
        self._window += 1
        self._reset()
        return progress

    def _progress(self) -> BatchProgress:
        samples = 0 if self._used else self._samples
        for load in self._used:
            samples = _sum(samples, load.samples or _DIFFERENT)
        if self._unknown:
            samples = _DIFFERENT
        # the steps of one iteration may train with one batch: its place is noted once
        new = [load for load in self._used if not load.counted]
        for load in new:
            load.counted = True
        if not new:
            return BatchProgress(max(0, samples), 0, 0)
        last = new[-1]
        length = last.source.length if last.number <= last.source.length else 0
        return BatchProgress(max(0, samples), last.number, length)

    def _sharing(self, called: Any) -> list[LoaderCall]:
        """Return the batches that share memory with the arguments of a call."""
        if not self._kept:
            return []
        keys = _storages(called).keys()
        return [load for load in self._kept if not keys.isdisjoint(load.storages)]

    def _of_call(self, arguments: Any, options: Any) -> LoaderCall | None:
        """Return the batch of a forward that may not train: the latest possible batch."""
        shared = self._sharing((arguments, options) if options else arguments)
        if shared:
            return shared[-1]
        samples = _first_dimension_of_call(arguments, options)
        for load in reversed(self._kept):
            if load.trained or load.window != self._window:
                continue
            if samples <= 0 or load.samples in (0, samples):
                return load
        return None

    def _may_be_trained(self, load: LoaderCall, samples: int) -> bool:
        """Return whether a forward may use a batch, although it shares no memory with it."""
        if load.trained:
            return False
        if not load.evaluated:
            return not load.is_for_evaluation
        # a teacher's batch is also trained with; an evaluation has several
        source = load.source
        if source.ended or load.samples != samples:
            return False
        others = any(
            call.evaluated and call.source is source for call in self._kept if call != load
        )
        return source.trained or not others

    def _train(self, load: LoaderCall) -> None:
        load.trained = load.source.trained = True
        if load not in self._used:
            self._used.append(load)
        # earlier batches of the pass were skipped
        index = self._kept.index(load) if load in self._kept else 0
        self._kept = [
            call
            for number, call in enumerate(self._kept)
            if number >= index or call.trained or call.source is not load.source
        ]

    def _train_several(self, fresh: list[LoaderCall], samples: int) -> None:
        """Note a forward with several possible batches: all of them if their samples add up."""
        sources = {id(load.source) for load in fresh}
        if len(sources) == len(fresh) and sum(load.samples for load in fresh) == samples:
            for load in fresh:
                self._train(load)
        else:
            self._unknown = True

    def _end_possible(self) -> None:
        """Note that no backward has followed a forward in eval mode."""
        if self._possible is not None:
            self._possible.evaluated = self._possible.source.evaluated = True
            self._possible = None


def first_dimension(batch: Any) -> int:
    """Return the first dimension of a batch's tensors; 0 without tensors, -1 if they differ.

    Examples
    --------
    >>> first_dimension((torch.zeros(32, 3), torch.zeros(32)))
    32
    >>> first_dimension("text")
    0
    """
    batch_size = 0
    with (
        torch._C.DisableTorchFunction()
    ):  # a TorchFunctionMode of the user must not see these calls
        for value in _values(batch):
            if isinstance(value, torch.Tensor) and value.dim():
                size = value.shape[0]
                if batch_size and size != batch_size:
                    return _DIFFERENT
                batch_size = size
    return batch_size


def _first_dimension_of_call(arguments: Any, options: Any) -> int:
    return first_dimension(arguments) or (first_dimension(options) if options else 0)


def _samples(batch: Any, iterator: Any) -> int:
    """Return the number of samples of a batch; 0 or less if unknown."""
    samples = first_dimension(batch) or _samples_of_containers(batch)
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    is_list = type(size) is int and type(batch) in (list, tuple) and len(batch) == size
    if is_list and samples != size and all(isinstance(value, torch.Tensor) for value in batch):
        return 0  # may be a list of images, with colour as the first dimension of each
    return samples


def _samples_of_containers(batch: Any) -> int:
    """Return the number of samples of a batch with tensors in containers, or without tensors.

    Examples are ``((first_view, second_view), target)``, texts, and columns of lists.
    """
    values = list(_values(batch))
    if values and all(isinstance(value, str) for value in values):
        return 0 if isinstance(batch, (str, Mapping)) else len(values)
    sizes = {first_dimension(value) for value in values} - {0}
    if not sizes and isinstance(batch, Mapping):
        sizes = {len(value) for value in values if isinstance(value, (list, np.ndarray))}
    return sizes.pop() if len(sizes) == 1 else 0


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, (tuple, list)) else (batch,)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the first tensors of nested containers."""
    return list(islice(_nested(value), _MAX_TENSORS))


def _nested(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH and isinstance(value, (tuple, list, Mapping)):
        for element in _values(value):
            yield from _nested(element, depth + 1)


def _storages(value: Any) -> dict[int, Any]:
    """Return the storages of tensors by their addresses."""
    storages = {}
    with torch._C.DisableTorchFunction():
        for tensor in _tensors(value):
            with suppress(RuntimeError, NotImplementedError):  # the tensor has no storage
                storage = tensor.untyped_storage()
                storages[storage._cdata] = storage
    return storages


def _references(value: Any) -> dict[int, StorageWeakRef]:
    """Return weak references to storages: while they exist, no address is used again."""
    return {key: StorageWeakRef(storage) for key, storage in _storages(value).items()}


def _sum(first: int, second: int) -> int:
    """Return the sum; `_DIFFERENT` if one summand is unknown."""
    return _DIFFERENT if _DIFFERENT in (first, second) else first + second


def _length(iterator: Any) -> int:
    """Return the number of batches in the pass of an iterator; 0 if unknown."""
    try:
        return len(iterator._index_sampler)
    except Exception:  # noqa: BLE001 - it may be a stream, or a class of the user
        return 0
