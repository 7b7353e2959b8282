"""The Prometheus metrics, as the collectors return them for a machine without devices."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from generate.tables import code, prose, table
from workbench.resources.process_registry import ProcessRegistry
from workbench.server.hardware_metrics import HardwareCollector
from workbench.server.metrics import TimingsCollector

_EMPTY = {"gpus": [], "nics": [], "cpu": {}, "memory": {}}


class _Message:
    """A message of the live feed about a machine without devices."""

    plain: dict[str, Any] = _EMPTY


class _Feed:
    """A feed that sends its message to each subscriber at once."""

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        listener(_Message())
        return lambda: None


def collectors() -> dict[str, Collector]:
    """Return the collectors of the server, by what they are about."""
    folder = Path(tempfile.gettempdir()) / "no-such-registry"
    return {
        "Clusters": TimingsCollector(ProcessRegistry(folder)),
        "Hardware of the server's VM": HardwareCollector(_Feed()),  # type: ignore[arg-type]
    }


def families(collector: Collector) -> Iterator[tuple[str, Metric]]:
    """Yield the metrics with their names in queries, which end in ``_total`` for counters."""
    for metric in collector.collect():
        ending = "_total" if metric.type == "counter" else ""
        yield f"{metric.name}{ending}", metric


def markdown() -> str:
    """Return a table of the metrics of each collector."""
    sections = []
    for title, collector in collectors().items():
        rows = [
            (
                code(name),
                metric.type,
                _labels(metric),
                prose(metric.documentation),
            )
            for name, metric in families(collector)
        ]
        sections += [f"## {title}", table(("metric", "type", "labels", "meaning"), rows)]
    return "\n\n".join(sections)


def _labels(metric: Any) -> str:
    """Return the labels of a metric family, which has no public name for them."""
    return ", ".join(map(code, metric._labelnames))
