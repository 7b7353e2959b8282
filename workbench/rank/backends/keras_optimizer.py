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

    if not hasattr(own := type(optimizer), "stateless_apply"):
        raise TypeError(
            f"DistributedOptimizer({own.__name__}): not an optimizer of Keras 3. Use "
            "hvd.DistributedOptimizer of horovod.tensorflow.keras with earlier versions."
        )
    options = {
        "op": hvd.Average if op is None else op,
        "process_set": process_set or hvd.global_process_set,
    }

    def reduced(gradients: list[Any]) -> list[Any]:
        found = list(gradients)
        dense = {place: one for place, one in enumerate(found) if one is not None}
        for place in [place for place, one in dense.items() if hasattr(one, "indices")]:
            name = f"DistributedOptimizer_Allreduce_sparse_{place}"
            found[place] = hvd.allreduce(dense.pop(place), name=name, **options)
        if dense:
            name = "DistributedOptimizer_Allreduce"
            together = hvd.grouped_allreduce(list(dense.values()), name=name, **options)
            for place, one in zip(dense, together, strict=True):
                found[place] = one
        return found

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        own.apply(self, reduced(grads), trainable_variables)

    # under the same name and module, Keras saves it as the class itself
    members = {"apply": apply, "__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (own,), members).from_config(optimizer.get_config())  # type: ignore[attr-defined]
