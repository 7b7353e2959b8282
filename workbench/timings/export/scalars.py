"""The figures of each iteration as scalars, for TensorBoard and MLflow."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError, reason
from workbench.redaction import Redactor
from workbench.timings.derive import columns, group_means
from workbench.timings.export.events import export_path, writing
from workbench.timings.export.iterations import select_rows
from workbench.timings.source import TimingsSource
from workbench.timings.store import PHASES, Rows

_TIMES = ("iteration", *PHASES, "communication", "wait")
_UNSCALED = ("algbw_gbps", "busbw_gbps", "overlap", "bytes")
_METRICS_LIMIT = 1000
"""Most metrics that MLflow accepts in one request."""


class Series(NamedTuple):
    """The scalars of one rank, or of the mean of all, a step per iteration.

    Attributes
    ----------
    name
        ``"mean"``, or such as ``"rank0"``.
    steps
        Iteration numbers.
    ends_s
        When each ended, in seconds before the end of the last one; 0 or less.
    scalars
        Values by name, such as ``"exposed_ms"``; NaN where not known.
    """

    name: str
    steps: npt.NDArray[np.int64]
    ends_s: npt.NDArray[np.float64]
    scalars: dict[str, npt.NDArray[np.float64]]

    def values(self) -> Iterator[tuple[str, int, float, float]]:
        """Yield the name, step, end in seconds and value of each known scalar."""
        steps, ends = self.steps.tolist(), self.ends_s.tolist()
        for name, values in self.scalars.items():
            for step, end, value in zip(steps, ends, values.tolist(), strict=True):
                if not math.isnan(value):
                    yield name, step, end, value


def write_tensorboard(
    run: TimingsSource, folder: str | os.PathLike[str], *, per_rank: bool
) -> Path:
    """Write scalars with PyTorch's writer; see `TimingsQueries.to_tensorboard`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"Cannot export to TensorBoard: {error}. Install it with pip install tensorboard."
        ) from None
    folder, now = export_path(folder, "folder"), time.time()
    for one in _series(run, per_rank=per_rank):
        with writing(folder), SummaryWriter(str(folder / one.name)) as writer:
            for name, step, end, value in one.values():
                writer.add_scalar(f"workbench/{name}", value, step, walltime=now + end)
    return folder


def log_to_mlflow(
    run: TimingsSource,
    run_id: str | None,
    experiment: str,
    tracking_uri: str | None,
    *,
    per_rank: bool,
) -> str:
    """Log scalars as metrics of an MLflow run; see `TimingsQueries.to_mlflow`."""
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UsageError(
            f"Cannot export to MLflow: {error}. Install it with pip install mlflow."
        ) from None
    every = _series(run, per_rank=per_rank)
    first = next(every)  # raises without iterations, before a run is created
    now, is_new = time.time(), run_id is None
    metrics = itertools.chain.from_iterable(_metrics(one, now) for one in (first, *every))
    with _tracking(tracking_uri):
        client = MlflowClient(tracking_uri)
        run_id = run_id or client.create_run(_experiment(client, experiment)).info.run_id
        try:
            while batch := list(itertools.islice(metrics, _METRICS_LIMIT)):
                client.log_batch(run_id, metrics=batch)
        except Exception:
            if is_new:
                with suppress(Exception):  # the server may be gone
                    client.set_terminated(run_id, "FAILED")
            raise
        if is_new:
            client.set_terminated(run_id)
    return run_id


@contextmanager
def _tracking(tracking_uri: str | None) -> Iterator[None]:
    """Replace the errors of MLflow, whose stores also raise those of other libraries."""
    from mlflow.store.db.db_types import DATABASE_ENGINES
    from mlflow.tracking import get_tracking_uri

    uri = str(get_tracking_uri() if tracking_uri is None else tracking_uri)
    try:
        if uri.startswith(tuple(DATABASE_ENGINES)) and find_spec("sqlalchemy") is None:
            raise UsageError("mlflow-skinny has no databases. Install mlflow, or name a server.")
        yield
    except Exception as error:  # noqa: BLE001 - a store raises what its library raises
        text = f"Cannot export to MLflow at {uri}: {reason(error).rstrip('.')}."
        if not isinstance(error, UsageError):
            text += " Check the tracking URI, its server and the run's id, and export again."
        raise UsageError(Redactor().clean(text)) from None


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    experiment_id: str = found.experiment_id if found else client.create_experiment(name)
    return experiment_id


def _metrics(one: Series, now: float) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, step, end, value in one.values():
        key = name if one.name == "mean" else f"{one.name}/{name}"
        yield Metric(key, value, round((now + end) * 1e3), step)


def _series(run: TimingsSource, *, per_rank: bool) -> Iterator[Series]:
    """Yield the mean over ranks, and then each rank if `per_rank` is true."""
    rows = select_rows(run, None)
    table = columns(rows)
    scalars = {f"{name}_ms": table[f"{name}_us"] / 1e3 for name in _TIMES}
    scalars |= {name: table[name].astype(np.float64) for name in _UNSCALED}
    steps, first, place = np.unique(rows["iteration"], return_index=True, return_inverse=True)
    ones = np.ones(len(rows))
    means = {name: group_means(values, place, ones)[0] for name, values in scalars.items()}
    yield Series("mean", steps, _ends_s(rows)[first], means)
    if per_rank:
        ends = _ends_s(rows)
        for rank in np.unique(rows["rank"]).tolist():
            own = rows["rank"] == rank
            given = {name: values[own] for name, values in scalars.items()}
            yield Series(f"rank{rank}", rows["iteration"][own], ends[own], given)


def _ends_s(rows: Rows) -> npt.NDArray[np.float64]:
    """Return each row's end against the last of its rank: each rank by its own clock."""
    ends = rows["start_ns"] + rows["iteration_ns"]
    ranks, place = np.unique(rows["rank"], return_inverse=True)
    last = np.full(len(ranks), np.iinfo(np.int64).min)
    np.maximum.at(last, place, ends)
    since: npt.NDArray[np.float64] = (ends - last[place]) / 1e9
    return since
