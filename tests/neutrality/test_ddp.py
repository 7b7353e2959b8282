"""Trainings with PyTorch's DistributedDataParallel, FSDP and other shards, to the last bit.

On three ranks: a division by two is exact, and hides a changed order of operations.
"""

from .cases import check, trainings

REPRESENTATIVE = (
    "either.amp_with_a_scaler",
    "either.hooks_on_modules_and_parameters",
    "ddp.find_unused_parameters_in_small_buckets",
    "ddp.join_divided_by_the_remaining_ranks",
    "ddp.no_sync_with_views_in_small_buckets",
    "ddp.sparse_gradients_empty_on_one_rank",
    "ddp_hooks.builtin_fp16",
    "ddp_hooks.own_factor",
    "sharded.fsdp2",
)


@trainings("ddp", 3, REPRESENTATIVE)
def test_a_training_ends_in_the_same_state(ranks, name):
    """With recording, without it, and without this package."""
    check(ranks, name)
