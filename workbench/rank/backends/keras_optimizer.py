"""An optimizer of Keras 3 that averages gradients over the ranks."""

from __future__ import annotations

from typing import Any


def distributed_optimizer(optimizer: Any, *, process_set: Any = None, op: Any = None) -> Any:
    """Return a copy of an optimizer that first averages gradients over the ranks.

    Its class is a subclass of the optimizer's class. A saved model has the optimizer's own class.

    Parameters
    ----------
    optimizer
        An optimizer of Keras 3. It is not changed, and its state is not copied.
    process_set
        The Horovod process set that takes part; None for all ranks.
    op
        ``hvd.Average``, ``hvd.Sum`` or ``hvd.Adasum``; None for the average.

    Raises
    ------
    TypeError
        `optimizer` is not an optimizer of Keras 3.
    """
    import horovod.tensorflow as hvd

    if not hasattr(base := type(optimizer), "stateless_apply"):
        raise TypeError(
            f"DistributedOptimizer({base.__name__}): not an optimizer of Keras 3. Use "
            "hvd.DistributedOptimizer of horovod.tensorflow.keras with earlier versions."
        )
    options = {
        "op": hvd.Average if op is None else op,
        "process_set": process_set or hvd.global_process_set,
    }

    def reduced(gradients: list[Any]) -> list[Any]:
        results = list(gradients)
        dense = {index: gradient for index, gradient in enumerate(results) if gradient is not None}
        for index in [index for index, gradient in dense.items() if hasattr(gradient, "indices")]:
            name = f"DistributedOptimizer_Allreduce_sparse_{index}"
            results[index] = hvd.allreduce(dense.pop(index), name=name, **options)
        if dense:
            name = "DistributedOptimizer_Allreduce"
            together = hvd.grouped_allreduce(list(dense.values()), name=name, **options)
            for index, gradient in zip(dense, together, strict=True):
                results[index] = gradient
        return results

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        base.apply(self, reduced(grads), trainable_variables)

    # with the same name and module, Keras saves it as the optimizer's own class
    members = {"apply": apply, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), members).from_config(optimizer.get_config())  # type: ignore[attr-defined]
