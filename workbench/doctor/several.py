"""Many GPUs that have the same to be said of them: one finding, not one each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from workbench.resources import Gpu, Snapshot


def alike(snapshot: Snapshot, look: Callable[[Gpu], str | None]) -> Iterator[tuple[str, str]]:
    """Look at each GPU once, and fold those of which the same is found.

    Parameters
    ----------
    snapshot
        MIG devices of one GPU count as that GPU.
    look
        Gives the evidence; None where nothing is wrong.

    Yields
    ------
    tuple of str
        The subject (``"GPUs 0-3"``), and the evidence.
    """
    found: dict[str, list[int]] = {}
    for index, gpu in {gpu.index: gpu for gpu in snapshot.gpus}.items():
        evidence = look(gpu)
        if evidence is not None:
            found.setdefault(evidence, []).append(index)
    for evidence, indices in found.items():
        yield named(indices), evidence


def named(indices: Iterable[int]) -> str:
    """Write ``"GPU 3"``, or ``"GPUs 0-2, 5"``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    single = len(runs) == 1 and len(runs[0]) == 1
    numbers = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"GPU{'' if single else 's'} {', '.join(numbers)}"


def first_of(texts: Iterable[str], most: int = 4) -> str:
    """Write the first few, and how many more there are."""
    every = list(texts)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
