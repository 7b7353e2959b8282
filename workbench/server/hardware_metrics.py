"""Prometheus metrics of this VM's hardware, on the Jupyter server's ``/metrics``.

A scrape runs on the event loop, so it reads no hardware itself: it returns the latest
sample of the server's sampler, and keeps the sampler running for `AWAKE_S`. The first
scrape after a pause has no figures yet. An unknown value has no sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workbench.server.feed import LiveFeed, LiveMessage

AWAKE_S = 300.0
"""How long the sampler runs after a scrape; Prometheus treats older data as stale."""
YOUNG_S = 5.0
"""An older sample is not returned, as it is out of date."""
MOST_DEVICES = 256
"""Most devices of each kind; their names are labels."""

_PREFIX = "gradient_workbench_"


class _DeviceMetric(NamedTuple):
    """A metric, and the field of a sample with its value."""

    name: str
    field: str
    text: str
    scale: float = 1


_GPU = (
    _DeviceMetric(
        "gpu_utilization_ratio", "utilization_percent", "Share of time a kernel ran.", 0.01
    ),
    _DeviceMetric("gpu_memory_used_bytes", "memory_used_bytes", "Frame buffer in use."),
    _DeviceMetric("gpu_memory_size_bytes", "memory_total_bytes", "Size of the frame buffer."),
    _DeviceMetric("gpu_power_watts", "power_w", "Power drawn."),
    _DeviceMetric("gpu_power_limit_watts", "power_limit_w", "Power limit."),
    _DeviceMetric("gpu_temperature_celsius", "temperature_c", "Temperature of the die."),
    _DeviceMetric("gpu_sm_clock_hertz", "sm_clock_mhz", "Clock of the multiprocessors.", 1e6),
    _DeviceMetric("gpu_memory_clock_hertz", "memory_clock_mhz", "Clock of the memory.", 1e6),
    _DeviceMetric("gpu_idle_allocated_seconds", "idle_s", "Seconds idle with memory allocated."),
    _DeviceMetric(
        "gpu_pcie_transmit_bytes_per_second", "pcie_tx_bytes_per_s", "NVML's own short measurement."
    ),
    _DeviceMetric(
        "gpu_pcie_receive_bytes_per_second", "pcie_rx_bytes_per_s", "NVML's own short measurement."
    ),
)
_GPU_TOTALS = (
    _DeviceMetric("gpu_nvlink_transmit_bytes", "nvlink_tx_bytes_per_s", "Bytes sent over NVLink."),
    _DeviceMetric(
        "gpu_nvlink_receive_bytes", "nvlink_rx_bytes_per_s", "Bytes received over NVLink."
    ),
)
_NIC_TOTALS = (
    _DeviceMetric("nic_transmit_bytes", "tx_bytes_per_s", "Bytes sent, RDMA's included."),
    _DeviceMetric("nic_receive_bytes", "rx_bytes_per_s", "Bytes received, RDMA's included."),
    _DeviceMetric("nic_rdma_transmit_bytes", "rdma_tx_bytes_per_s", "Bytes sent by RDMA."),
    _DeviceMetric("nic_rdma_receive_bytes", "rdma_rx_bytes_per_s", "Bytes received by RDMA."),
    _DeviceMetric("nic_transmit_packets", "tx_packets_per_s", "Packets sent."),
    _DeviceMetric("nic_receive_packets", "rx_packets_per_s", "Packets received."),
    _DeviceMetric("nic_rdma_transmit_packets", "rdma_tx_packets_per_s", "Packets sent by RDMA."),
    _DeviceMetric("nic_rdma_receive_packets", "rdma_rx_packets_per_s", "Packets received by RDMA."),
    _DeviceMetric("nic_cnp_sent", "cnp_sent_per_s", "Congestion notifications sent."),
    _DeviceMetric("nic_cnp_handled", "cnp_handled_per_s", "Congestion notifications obeyed."),
    _DeviceMetric(
        "nic_ecn_marked", "ecn_marked_per_s", "Packets received with a mark of congestion."
    ),
)
_ERRORS = _DeviceMetric("nic_errors", "errors", "Errors, by the counter's own name.")


class HardwareCollector(Collector):
    """Collects the latest sample, and the totals of its rates since scraping began.

    Parameters
    ----------
    feed
        Feed to subscribe to while there are scrapes.
    clock
        Monotonic clock, in seconds.
    """

    def __init__(self, feed: LiveFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._lock = threading.Lock()
        self._scraped_s = 0.0
        self._unsubscribe: Callable[[], None] | None = None
        self._latest: tuple[float, dict[str, Any]] | None = None
        self._totals: dict[tuple[str, ...], float] = {}

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector starts no sampler."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the latest sample, without waiting for one."""
        self._wake()
        with self._lock:
            latest, totals = self._latest, dict(self._totals)
        if latest is None or self._clock() - latest[0] > YOUNG_S:
            return
        plain = latest[1]
        yield from _of_the_machine(plain)
        yield from _gauges(_GPU, _gpus(plain))
        yield _clock_limits(_gpus(plain))
        present = {labels for labels, _ in (*_gpus(plain), *_nics(plain))}
        for family in _GPU_TOTALS:
            yield _total(family, ("gpu", "uuid"), totals, present)
        for family in _NIC_TOTALS:
            yield _total(family, ("nic",), totals, present)
        yield _total(_ERRORS, ("nic", "error"), totals, present)

    def close(self) -> None:
        """Unsubscribe until the next scrape."""
        with self._lock:
            unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def _wake(self) -> None:
        with self._lock:
            self._scraped_s = self._clock()
            if self._unsubscribe is not None:
                return
            self._latest = None  # from before a pause
            self._totals.clear()
            self._unsubscribe = lambda: None  # subscribing may call back with the last message
        unsubscribe = self._feed.subscribe(self._take)
        with self._lock:
            self._unsubscribe = unsubscribe

    def _take(self, message: LiveMessage) -> None:
        now_s = self._clock()
        with self._lock:
            if self._unsubscribe is None:
                return
            if self._latest is not None:
                self._add(message.plain, now_s - self._latest[0])
            self._latest = now_s, message.plain
            if now_s - self._scraped_s <= AWAKE_S:
                return
        self.close()

    def _add(self, plain: dict[str, Any], elapsed_s: float) -> None:
        for families, devices in ((_GPU_TOTALS, _gpus(plain)), (_NIC_TOTALS, _nics(plain))):
            for labels, device in devices:
                for family in families:
                    self._count((family.name, *labels), device.get(family.field), elapsed_s)
        for labels, nic in _nics(plain):
            errors = nic.get(_ERRORS.field)
            for name, rate in errors.items() if isinstance(errors, dict) else ():
                self._count((_ERRORS.name, *labels, name), rate, elapsed_s)

    def _count(self, key: tuple[str, ...], rate: Any, elapsed_s: float) -> None:
        if _known(rate):
            self._totals[key] = self._totals.get(key, 0.0) + rate * elapsed_s


def _known(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _gpus(plain: dict[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [
        ((str(gpu["index"]), gpu["uuid"] if isinstance(gpu["uuid"], str) else ""), gpu)
        for gpu in plain["gpus"][:MOST_DEVICES]
    ]


def _nics(plain: dict[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    return [((nic["name"],), nic) for nic in plain["nics"][:MOST_DEVICES]]


def _of_the_machine(plain: dict[str, Any]) -> Iterator[Metric]:
    for name, value, scale, text in (
        (
            "cpu_utilization_ratio",
            plain["cpu"]["percent"],
            0.01,
            "Utilization of the available CPUs.",
        ),
        ("memory_used_bytes", plain["memory"]["used_bytes"], 1, "Memory in use."),
        ("memory_size_bytes", plain["memory"]["total_bytes"], 1, "Available memory in total."),
    ):
        metric = GaugeMetricFamily(_PREFIX + name, text)
        if _known(value):
            metric.add_metric((), value * scale)
        yield metric


def _gauges(
    families: tuple[_DeviceMetric, ...], devices: list[tuple[tuple[str, ...], dict[str, Any]]]
) -> Iterator[Metric]:
    for family in families:
        metric = GaugeMetricFamily(_PREFIX + family.name, family.text, labels=("gpu", "uuid"))
        for labels, device in devices:
            value = device.get(family.field)
            if _known(value):
                metric.add_metric(labels, value * family.scale)
        yield metric


def _clock_limits(gpus: list[tuple[tuple[str, ...], dict[str, Any]]]) -> Metric:
    metric = GaugeMetricFamily(
        f"{_PREFIX}gpu_clocks_held",
        "1 for each reason that currently reduces the clocks.",
        labels=("gpu", "uuid", "reason"),
    )
    for labels, gpu in gpus:
        reasons = gpu.get("held_by")
        for reason in dict.fromkeys(reasons) if isinstance(reasons, list) else ():
            metric.add_metric((*labels, reason), 1)
    return metric


def _total(
    family: _DeviceMetric,
    names: tuple[str, ...],
    totals: dict[tuple[str, ...], float],
    present: set[tuple[str, ...]],
) -> Metric:
    """Return the totals of the devices that are still present."""
    metric = CounterMetricFamily(_PREFIX + family.name, family.text, labels=names)
    devices = names[:-1] if names[-1] == "error" else names
    for (name, *labels), value in totals.items():
        if name == family.name and tuple(labels[: len(devices)]) in present:
            metric.add_metric(labels, value)
    return metric


_collectors: dict[int, HardwareCollector] = {}


def register(feed: LiveFeed, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics of a feed to `registry`, replacing those of an earlier server."""
    release(registry)
    _collectors[id(registry)] = HardwareCollector(feed)
    registry.register(_collectors[id(registry)])


def release(registry: CollectorRegistry = REGISTRY) -> None:
    """Remove the metrics and unsubscribe from the feed."""
    earlier = _collectors.pop(id(registry), None)
    if earlier is not None:
        registry.unregister(earlier)
        earlier.close()
