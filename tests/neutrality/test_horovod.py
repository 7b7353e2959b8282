"""Trainings with Horovod, to the last bit."""

from .cases import check, trainings

REPRESENTATIVE = (
    "either.gan",
    "either.in_a_thread",
    "either.lbfgs",
    "either.hooks_on_modules_and_parameters",
    "horovod.backward_passes_per_step",
    "horovod.clipped_after_synchronize",
    "horovod.fp16_compression",
    "horovod.join",
    "horovod.sparse_gradients",
)


@trainings("horovod", 2, REPRESENTATIVE)
def test_a_training_ends_in_the_same_state(ranks, name):
    """With recording, without it, and without this package."""
    check(ranks, name)
