"""An optimizer of Keras 3 that averages gradients over the ranks."""

from __future__ import annotations

from typing import Any


def distributed_optimizer(optimizer: Any, *, process_set: Any = None, op: Any = None) -> Any:
    """Return an optimizer like a given one that first averages gradients over the ranks.

    Its class is a subclass of the optimizer's. A saved model has the class itself.

    Parameters
    ----------
    optimizer
        An optimizer of Keras 3. It is not changed, and its state is not taken over.
    process_set
        The Horovod process set whose ranks take part; None for all ranks.
    op
        ``hvd.Average``, ``hvd.Sum`` or ``hvd.Adasum``; None for the average.

    Raises
    ------
    TypeError
        If it is no optimizer of Keras 3.
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
        gradients_list = list(gradients)
        dense = {
            index: gradient for index, gradient in enumerate(gradients_list) if gradient is not None
        }
        for index in [index for index, gradient in dense.items() if hasattr(gradient, "indices")]:
            name = f"DistributedOptimizer_Allreduce_sparse_{index}"
            gradients_list[index] = hvd.allreduce(dense.pop(index), name=name, **options)
        if dense:
            name = "DistributedOptimizer_Allreduce"
            together = hvd.grouped_allreduce(list(dense.values()), name=name, **options)
            for index, gradient in zip(dense, together, strict=True):
                gradients_list[index] = gradient
        return gradients_list

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        base.apply(self, reduced(grads), trainable_variables)

    # under the same name and module, Keras saves it as the class itself
    members = {"apply": apply, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), members).from_config(optimizer.get_config())  # type: ignore[attr-defined]
