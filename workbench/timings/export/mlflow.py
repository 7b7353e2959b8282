"""Scalars as metrics of an MLflow run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.timings.export.scalars import Series, series

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

_AT_ONCE = 1000
"""Metrics in one request, MLflow's limit."""


def log(
    run: Exports, run_id: str | None, per_rank: bool, *, experiment: str, tracking_uri: str | None
) -> str:
    """Log them; see `Exports.to_mlflow`."""
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UsageError(
            f"Cannot export to MLflow: {error}. Install it with pip install mlflow."
        ) from None
    every = series(run, per_rank)
    first = next(every)  # raises where there is nothing to log, before a run is made
    client = MlflowClient(tracking_uri)
    own = run_id is None
    run_id = run_id or client.create_run(_experiment(client, experiment)).info.run_id
    now = time.time()
    metrics = itertools.chain.from_iterable(_metrics(one, now) for one in (first, *every))
    while batch := list(itertools.islice(metrics, _AT_ONCE)):
        client.log_batch(run_id, metrics=batch)
    if own:
        client.set_terminated(run_id)
    return run_id


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    there: str = found.experiment_id if found else client.create_experiment(name)
    return there


def _metrics(one: Series, now: float) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, values in one.scalars.items():
        key = name if one.name == "mean" else f"{one.name}/{name}"
        for step, at, value in zip(
            one.steps.tolist(), one.ends_s.tolist(), values.tolist(), strict=True
        ):
            if not math.isnan(value):
                yield Metric(key, value, round((now + at) * 1e3), step)
