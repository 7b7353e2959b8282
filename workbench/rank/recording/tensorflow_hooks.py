"""Hooks in TensorFlow and Keras that report the events of a training loop.

They are installed when a cell imports TensorFlow, and then remain. TensorFlow traces a function
once, possibly in a cell that is not recorded, and only the trace shows whether the function trains.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from workbench.rank.after_import import after_import
from workbench.rank.recording.patches import Function, Patches
from workbench.rank.recording.recorder import Recorder


class TensorFlowHooks(Patches):
    """Reports TensorFlow's events in the main thread to a `Recorder`.

    Eager code has the same phases as PyTorch's code. A call of a ``tf.function`` that applies
    gradients is an iteration with unknown phases: TensorFlow runs them in any order.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._tf: Any = None
        self._running: Any = None
        """The outermost running function."""
        self._training: weakref.WeakSet[Any] = weakref.WeakSet()
        """Functions that apply gradients."""

    def watch(self) -> None:
        """Install the hooks once a cell has imported TensorFlow, and Keras."""
        after_import("tensorflow", self._install)
        after_import("keras.src.optimizers.base_optimizer", self._install_keras)

    def is_eager(self) -> bool:
        """Return whether the main thread executes eagerly, outside any ``tf.function``."""
        main = threading.current_thread() is threading.main_thread()
        return main and self._running is None and bool(self._tf.executing_eagerly())

    def _install(self, tensorflow: Any) -> None:
        self._tf = tensorflow
        self.replace(type(tensorflow.function(lambda: None)), "__call__", self._function)
        self.replace(tensorflow.GradientTape, "__enter__", self._tape)
        self.replace(tensorflow.GradientTape, "gradient", self._gradient)

    def _install_keras(self, module: Any) -> None:
        self.replace(module.BaseOptimizer, "apply", self._apply)

    def _function(self, original: Function) -> Function:
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if not self.is_eager():
                return original(function, *args, **kwargs)
            loop = self._recorder.loop
            self._running = function
            loop.forward_begins(training=False, grad=True)
            trained = False
            try:
                result = original(function, *args, **kwargs)
                trained = function in self._training
            finally:
                self._running = None
                if trained:
                    loop.compiled_step(id(function))
                else:
                    loop.forward_ends(grad=False)
            return result

        return __call__

    def _tape(self, original: Function) -> Function:
        def __enter__(tape: Any) -> Any:  # noqa: N807 - replaces a function of that name
            if self.is_eager():
                self._recorder.loop.forward_begins(training=True, grad=True)
            return original(tape)

        return __enter__

    def _gradient(self, original: Function) -> Function:
        def gradient(*args: Any, **kwargs: Any) -> Any:
            if not self.is_eager():
                return original(*args, **kwargs)
            loop = self._recorder.loop
            loop.backward_begins()
            raised = True
            try:
                result = original(*args, **kwargs)
                raised = False
            finally:
                loop.backward_ends(raised=raised)
            return result

        return gradient

    def _apply(self, original: Function) -> Function:
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._running is not None:
                self._training.add(self._running)
            if self._tf is None or not self.is_eager():
                return original(optimizer, *args, **kwargs)
            loop = self._recorder.loop
            loop.reduces_gradients()
            loop.step_begins(id(optimizer))
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                loop.step_ends(id(optimizer))

        return apply
