"""Export of the figures of each iteration as scalars, to TensorBoard and MLflow."""

from __future__ import annotations

import itertools
import logging
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

_log = logging.getLogger(__name__)

_TIMES = ("iteration", *PHASES, "communication", "wait")
_UNSCALED = ("algbw_gbps", "busbw_gbps", "overlap", "bytes")
_MAX_METRICS = 1000
"""Maximum number of metrics that MLflow accepts in one request."""


class Series(NamedTuple):
    """The scalars of one rank, or their means over ranks, with one step per iteration.

    Attributes
    ----------
    name
        ``"mean"``, or a rank such as ``"rank0"``.
    steps
        Iteration numbers.
    ends_s
        End of each iteration relative to the end of the last iteration, in seconds; 0 or less.
    scalars
        Values by name, such as ``"exposed_ms"``; NaN for unknown values.

    Examples
    --------
    >>> losses = np.array([0.5, math.nan])
    >>> series = Series("rank0", np.array([1, 2]), np.array([-1.0, 0.0]), {"loss": losses})
    >>> list(series.values())
    [('loss', 1, -1.0, 0.5)]
    """

    name: str
    steps: npt.NDArray[np.int64]
    ends_s: npt.NDArray[np.float64]
    scalars: dict[str, npt.NDArray[np.float64]]

    def values(self) -> Iterator[tuple[str, int, float, float]]:
        """Yield the name, step, end in seconds and value of each known scalar."""
        steps = self.steps.tolist()
        ends = self.ends_s.tolist()
        for name, values in self.scalars.items():
            for step, end, value in zip(steps, ends, values.tolist(), strict=True):
                if not math.isnan(value):
                    yield name, step, end, value


def write_tensorboard(
    run: TimingsSource, folder: str | os.PathLike[str], *, per_rank: bool
) -> Path:
    """Write scalars with PyTorch's writer, and return the folder.

    See `TimingsQueries.to_tensorboard`.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"Cannot export to TensorBoard: {error}. Install it with pip install tensorboard."
        ) from None
    folder = export_path(folder, "folder")
    now = time.time()
    for series in _iter_series(run, per_rank=per_rank):
        with writing(folder), SummaryWriter(str(folder / series.name)) as writer:
            for name, step, end, value in series.values():
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
    """Log scalars as metrics of an MLflow run, and return the run's id.

    See `TimingsQueries.to_mlflow`.
    """
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UsageError(
            f"Cannot export to MLflow: {error}. Install it with pip install mlflow."
        ) from None
    all_series = _iter_series(run, per_rank=per_rank)
    first = next(all_series)  # Without iterations, this raises before a run is created.
    now = time.time()
    is_new = run_id is None
    metrics = itertools.chain.from_iterable(
        _metrics(series, now) for series in (first, *all_series)
    )
    with _mlflow_errors(tracking_uri):
        client = MlflowClient(tracking_uri)
        run_id = run_id or client.create_run(_experiment(client, experiment)).info.run_id
        _log.info("logging metrics to %s MLflow run %s", "new" if is_new else "existing", run_id)
        try:
            while batch := list(itertools.islice(metrics, _MAX_METRICS)):
                client.log_batch(run_id, metrics=batch)
        except Exception:
            if is_new:
                with suppress(Exception):  # The server may not answer any more.
                    client.set_terminated(run_id, "FAILED")
            raise
        if is_new:
            client.set_terminated(run_id)
    return run_id


@contextmanager
def _mlflow_errors(tracking_uri: str | None) -> Iterator[None]:
    """Replace MLflow's errors, and those of the libraries that its stores use, by `UsageError`."""
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
    existing = client.get_experiment_by_name(name)
    experiment_id: str = existing.experiment_id if existing else client.create_experiment(name)
    return experiment_id


def _metrics(series: Series, now: float) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, step, end, value in series.values():
        key = name if series.name == "mean" else f"{series.name}/{name}"
        yield Metric(key, value, round((now + end) * 1e3), step)


def _iter_series(run: TimingsSource, *, per_rank: bool) -> Iterator[Series]:
    """Yield the means over ranks, and then each rank if `per_rank` is true."""
    rows = select_rows(run, None)
    table = columns(rows)
    scalars = {f"{name}_ms": table[f"{name}_us"] / 1e3 for name in _TIMES}
    scalars |= {name: table[name].astype(np.float64) for name in _UNSCALED}
    steps, first, group = np.unique(rows["iteration"], return_index=True, return_inverse=True)
    weights = np.ones(len(rows))
    means = {name: group_means(values, group, weights)[0] for name, values in scalars.items()}
    yield Series("mean", steps, _ends_s(rows)[first], means)
    if per_rank:
        ends = _ends_s(rows)
        for rank in np.unique(rows["rank"]).tolist():
            of_rank = rows["rank"] == rank
            values_of_rank = {name: values[of_rank] for name, values in scalars.items()}
            yield Series(f"rank{rank}", rows["iteration"][of_rank], ends[of_rank], values_of_rank)


def _ends_s(rows: Rows) -> npt.NDArray[np.float64]:
    """Return the end of each row relative to the last end of its rank, in seconds.

    Each rank's times are on its own clock, so ranks are not compared.
    """
    ends = rows["start_ns"] + rows["iteration_ns"]
    ranks, group = np.unique(rows["rank"], return_inverse=True)
    last = np.full(len(ranks), np.iinfo(np.int64).min)
    np.maximum.at(last, group, ends)
    relative_s: npt.NDArray[np.float64] = (ends - last[group]) / 1e9
    return relative_s
