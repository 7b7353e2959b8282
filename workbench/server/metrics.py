"""Prometheus metrics of the running clusters, on the Jupyter server's ``/metrics``.

Kernels write their figures to a `ProcessRegistry`, and each scrape reads it. The number
of labels is limited to the newest `MAX_CLUSTERS` clusters, `MAX_RANKS` ranks of each,
and `MAX_PHASES` phases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from jupyter_core.paths import jupyter_runtime_dir
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workbench.errors import printable
from workbench.resources.process_registry import FOLDER, ProcessRegistry, jupyter_folder
from workbench.schema.figures import FIGURES

VERSION = 1
"""Version of the registry's entries."""
MAX_CLUSTERS = 16
MAX_RANKS = 1024
MAX_PHASES = 16
MAX_CHARACTERS = 100
"""Maximum length of a label's value."""

Row: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]
"""The values of the labels of a rank or device, and its figures."""

PREFIX = "gradient_workbench_"
_LABELS = ("cluster", "rank", "vm")


class Family(NamedTuple):
    """A metric of several ranks or devices, and the path of its value in the figures of each."""

    name: str
    text: str
    path: tuple[str, ...]
    scale: float = 1


_COUNTERS = (
    Family("iterations", "Iterations of training.", ("iterations",)),
    Family(
        "communication_seconds",
        "Time with collectives in progress, including queueing.",
        ("seconds", "communication"),
    ),
    Family("bytes", "Bytes submitted to collectives.", ("bytes",)),
    Family("dropped_records", "Records lost in transit to the kernel.", ("dropped",)),
)
_GAUGES = (
    Family("iteration", "Number of the latest iteration.", ("latest", "iteration")),
    *(
        Family(
            figure.metric,
            figure.metric_meaning,
            ("latest", figure.published or figure.name),
            figure.metric_scale,
        )
        for figure in FIGURES.values()
        if figure.metric
    ),
)


class TimingsCollector(Collector):
    """Collector that reads the kernels' registry at each scrape.

    By default, the registry is in the user's runtime folder.
    """

    def __init__(self, registry: ProcessRegistry | None = None) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all clusters with a running kernel."""
        # The registry is not cached, because its folder depends on environment variables.
        registry = self._registry or ProcessRegistry(jupyter_folder(jupyter_runtime_dir()) / FOLDER)
        ranks = [(labels, rank) for labels, rank in _ranks(registry.read())]
        for family in _COUNTERS:
            yield filled(CounterMetricFamily, family, _LABELS, ranks)
        phases = CounterMetricFamily(
            f"{PREFIX}phase_seconds", "Time spent in a phase.", labels=(*_LABELS, "phase")
        )
        for labels, rank in ranks:
            for name, value in _phases(rank):
                phases.add_metric((*labels, name), value)
        yield phases
        for family in _GAUGES:
            yield filled(GaugeMetricFamily, family, _LABELS, ranks)


def filled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    family: Family,
    names: tuple[str, ...],
    rows: Iterable[Row],
) -> Metric:
    """Return a metric with a sample for each known value in the rows.

    `names` are the names of the labels. An unknown value has no sample; it is not shown as 0.
    """
    metric = kind(f"{PREFIX}{family.name}", family.text, labels=names)
    for labels, figures in rows:
        value = number(figures, family.path)
        if value is not None:
            metric.add_metric(labels, value * family.scale)
    return metric


def _ranks(entries: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield the labels and figures of each rank, and skip invalid entries."""
    valid_entries = [
        entry for entry in entries if entry.get("version") == VERSION and number(entry, ("time_s",))
    ]
    newest = sorted(valid_entries, key=lambda entry: float(entry["time_s"]), reverse=True)
    # Samples must be unique, so only the newer of two clusters with the same name is shown.
    clusters = {_label(entry.get("cluster")): entry for entry in reversed(newest[:MAX_CLUSTERS])}
    for name, entry in clusters.items():
        seen: set[int] = set()
        for rank in _list(entry.get("ranks"))[:MAX_RANKS]:
            index = rank.get("rank") if isinstance(rank, dict) else None
            if isinstance(index, int) and index not in seen:
                seen.add(index)
                yield (name, str(index), _label(rank.get("vm"))), rank


def _phases(rank: dict[str, Any]) -> list[tuple[str, float]]:
    seconds = rank.get("seconds")
    names = list(seconds)[:MAX_PHASES] if isinstance(seconds, dict) else []
    phases = [(name, number(rank, ("seconds", name))) for name in names if name != "communication"]
    return [(_label(name), value) for name, value in phases if value is not None]


def number(content: Any, path: tuple[str, ...]) -> float | None:
    """Return the number at a path of names in JSON values; None without a finite number.

    Examples
    --------
    >>> number({"memory": {"used_bytes": 512}}, ("memory", "used_bytes"))
    512
    >>> number({"memory": {"reason": "not reported"}}, ("memory", "used_bytes")) is None
    True
    """
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return content if math.isfinite(content) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _label(value: Any) -> str:
    return printable(str(value or "")[:MAX_CHARACTERS])


_registered: set[int] = set()


def register(registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics to `registry`, once per process."""
    if id(registry) not in _registered:
        _registered.add(id(registry))
        registry.register(TimingsCollector())
