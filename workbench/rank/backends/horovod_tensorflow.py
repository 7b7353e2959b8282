"""Horovod's ops for TensorFlow in a rank; they use the same ring as the ops for PyTorch.

`workbench build-horovod --with tensorflow` builds these ops; see
`workbench.horovod_build.tensorflow_patch`.
"""

from __future__ import annotations

import sys
from typing import Any

from horovod.torch import mpi_ops

from workbench.rank.after_import import after_import
from workbench.rank.backends import cell_init
from workbench.rank.recording.patches import Function, Patches
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.tensorflow_hooks import TensorFlowHooks

_BUILD = (
    "Run `workbench build-horovod --with tensorflow` on each VM, and restart the cluster with "
    "`%cluster restart`."
)
_NOT_AVERAGED = (
    "hvd.DistributedOptimizer does not average gradients with Keras 3: the weights of the ranks "
    "will differ. Use `from workbench.tensorflow import DistributedOptimizer` instead, or "
    "hvd.DistributedGradientTape in a training loop."
)
_COLLECTIVES = (
    *("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast"),
    *("broadcast_", "broadcast_variables", "alltoall", "reducescatter", "grouped_reducescatter"),
)


class HorovodTensorFlow(Patches):
    """Adapts Horovod's modules for TensorFlow to a rank, once a cell imports them."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._hooks = TensorFlowHooks(recorder)

    def install(self) -> None:
        """Wait for the import of the modules."""
        self._hooks.watch()
        after_import("horovod.tensorflow", self._adapt, _BUILD)
        after_import("horovod._keras", self._warn)

    def _adapt(self, module: Any) -> None:
        if bool(module.is_initialized()) != bool(mpi_ops.is_initialized()):
            raise ImportError(
                "horovod.tensorflow: this Horovod was built by something else, so that its "
                f"TensorFlow ops are in no ring. {_BUILD}"
            )
        module.init = module.mpi_ops.init = cell_init.init
        for name in _COLLECTIVES:
            if hasattr(module, name):
                self.replace(module, name, self._expose)
        self.replace(module, "_make_allreduce_grads_fn", self._expose_result)

    def _expose(self, original: Function) -> Function:
        """Return a collective that records the wait of training for it."""

        def collective(*args: Any, **kwargs: Any) -> Any:
            if not self._hooks.is_eager():
                return original(*args, **kwargs)
            waits = self._recorder.waits
            waits.exposed_begins()
            try:
                return original(*args, **kwargs)
            finally:
                waits.exposed_ends()

        return collective

    def _expose_result(self, original: Function) -> Function:
        return lambda *args, **kwargs: self._expose(original(*args, **kwargs))

    def _warn(self, module: Any) -> None:
        """Make Horovod print a warning when it creates an optimizer that does not average."""

        def make(original: Function) -> Function:
            def create_distributed_optimizer(*args: Any, **kwargs: Any) -> Any:
                created = original(*args, **kwargs)
                if hasattr(created, "stateless_apply"):  # Keras 3
                    print(_NOT_AVERAGED, file=sys.stderr)  # noqa: T201 - for the cell's output
                return created

            return create_distributed_optimizer

        self.replace(module, "create_distributed_optimizer", make)
