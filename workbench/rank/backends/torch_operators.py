"""Records functional collectives: operators that tensor parallelism and compiled code use."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist

from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_operations import OPERATORS, Named, first, measure
from workbench.rank.recording.patches import Function, Hooks
from workbench.rank.recording.recorder import Recorder

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
_UNHEARD = re.compile(
    "_c10d_functional::batch_p2p_ops|_dtensor::shard_dim_alltoall"
    "|symm_mem::.*(reduce|gather|all_to_all|broadcast|_put|_get).*"
)
"""Operators that communicate, but are not timed."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of real tensors; a tracer's tensors communicate nothing."""


class Operator:
    """Replaces the implementation of an operator, with the same hash."""

    def __init__(self, original: Function, call: Callable[..., Any]) -> None:
        self._original = original
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator."""
        return self._call(self._original, args, kwargs)

    def __hash__(self) -> int:
        return hash(self._original)  # PyTorch keeps operators in sets


class OperatorHooks(Hooks):
    """Reports functional collectives, and waits for their results, to a `Recorder`."""

    def __init__(self, recorder: Recorder, calls: TorchCalls) -> None:
        super().__init__(recorder)
        self._calls = calls
        self._in_operator = 0

    def install(self) -> None:
        """Start recording."""
        if not dist.is_available():
            return
        for name, named in OPERATORS.items():
            for namespace in _NAMESPACES:
                self._replace(f"{namespace}::{name}", self._operator(named))
        self._replace("_c10d_functional::wait_tensor", self._wait_tensor)
        for name in torch._C._dispatch_get_all_op_names():
            if _UNHEARD.fullmatch(name):
                self._replace(name, self._unheard)

    def _replacement(self, original: Function, make: Callable[[Function], Function]) -> Function:
        guarded = super()._replacement(original, make)
        return Operator(original, lambda _, args, kwargs: guarded(*args, **kwargs))

    def _replace(self, name: str, make: Callable[[Function], Function]) -> None:
        """Replace an operator if it exists, and its overloads, which compiled code calls."""
        namespace, _, packet_name = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        if packet is not None:
            self.replace(packet, "_op", make)
            for overload in packet.overloads():
                self.replace(getattr(packet, overload), "_op", make)

    def _operator(self, named: Named) -> Callable[[Function], Function]:
        def call(original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            thread = threading.get_ident()
            arguments = (*args, *kwargs.values()) if kwargs else args
            # a dispatch mode calls the operator again, which must not be recorded twice
            if self._in_operator == thread or type(first(arguments)) not in _PLAIN:
                return original(*args, **kwargs)
            measured = measure(arguments[0])
            began = perf_counter_ns()
            self._in_operator = thread
            try:
                result = original(*args, **kwargs)
            finally:
                self._in_operator = 0
            group = kwargs["group_name"] if "group_name" in kwargs else args[-1]
            call_record = self._calls.call(named, group, measured, began, thread)
            for tensor in [result] if isinstance(result, torch.Tensor) else result:
                self._calls.keep(tensor.untyped_storage().data_ptr(), call_record)
            return result

        return lambda original: Operator(original, call)

    def _wait_tensor(self, original: Function) -> Function:
        exposed = self._calls.exposed(original)

        def call(_: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensor = first(args or tuple(kwargs.values()))
            thread = threading.get_ident()
            if self._in_operator == thread or type(tensor) not in _PLAIN:
                return original(*args, **kwargs)
            self._in_operator = thread
            try:
                result = exposed(*args, **kwargs)
            finally:
                self._in_operator = 0
            key = tensor.untyped_storage().data_ptr()
            call_record = self._calls.pending.get(key)
            if call_record is not None and tensor.is_cuda:
                del self._calls.pending[key]
                self._calls.follow_stream([call_record], None)
            elif call_record is not None:
                self._calls.finish(key, call_record)
            return result

        return Operator(original, call)

    def _unheard(self, original: Function) -> Function:
        def call(_: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if any(type(first(argument)) in _PLAIN for argument in (*args, *kwargs.values())):
                self._recorder.loop.note_unheard()
            return original(*args, **kwargs)

        return Operator(original, call)
