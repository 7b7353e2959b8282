"""Compares the runs of a training: which trainings there are, and which are exceptions."""

import pytest
from levels import in_soak

from .ranks import failed
from .trainings.kinds import names

REFUSED = {
    "ddp.mixed_precision": "DDP's own mixed precision needs an accelerator's events",
    "ddp_hooks.bf16_compress_hook": "needs NCCL",
    "ddp_hooks.bf16_compress_wrapper": "needs NCCL",
    "ddp_hooks.hook_with_a_zero_step": "may hang with Gloo, so PyTorch refuses it",
    "ddp_hooks.step_in_backward": "needs an accelerator's streams",
    "horovod.adasum": "needs MPI or NCCL",
    "either.bf16": "Horovod does not accept such tensors",
}
"""Trainings that PyTorch or Horovod refuses with Gloo on a CPU, and why. The error must be the same
with recording."""

IRREPRODUCIBLE = {}
"""Trainings whose plain runs differ from each other, and why; only their iterations are checked."""


def trainings(backend, n, representative):
    """Return all trainings for a backend, as arguments of a test with the fixture `ranks`.

    Parameters
    ----------
    n, representative
        `make test` runs these trainings on so many ranks; `make soak` runs the others, and all on
        other numbers of ranks.
    """
    chosen = [(n, name) for name in representative]
    cases = [(ranks, name) for ranks in (2, 3) for name in names(backend)]
    assert set(chosen) <= set(cases)
    return pytest.mark.parametrize(
        ("ranks", "name"),
        [
            (pytest.param if case in chosen else in_soak)(
                (backend, case[0]), case[1], id=f"{case[1]}-{case[0]}"
            )
            for case in cases
        ],
        indirect=["ranks"],
        scope="module",
    )


def check(ranks, name):
    """Fail unless a training ends in the same state in all runs, and its iterations are recorded.

    Parameters
    ----------
    ranks
        Plain processes, and a cluster: see the fixture `ranks`.
    """
    plain, cells = ranks
    first, again = plain.run(name), plain.run(name)
    recorded, iterations = cells.run(name, recording=True)
    unrecorded, _ = cells.run(name, recording=False)
    assert not failed(first) or name in REFUSED, f"{first}\n{plain.log()}"
    if first == again:
        states = {"with recording": recorded, "without recording": unrecorded}
        assert states == dict.fromkeys(states, first), f"{states}, and plain: {first}"
    else:
        assert name in IRREPRODUCIBLE, f"two plain runs differ: {first}, then {again}"
    if not failed(first):
        expected = {rank: state["iterations"] for rank, state in first.items()}
        expected = {rank: number for rank, number in expected.items() if number}
        assert iterations == expected, f"{iterations} were recorded, not {expected}"
