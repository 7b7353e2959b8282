"""Prometheus metrics of this VM's hardware, on the Jupyter server's ``/metrics``.

A scrape runs on the event loop, so it reads no hardware itself: it returns the latest
sample of the server's sampler, and keeps the sampler running for `AWAKE_S`. The first
scrape after a pause has no figures yet. An unknown value has no sample.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workbench.server.feed import LiveFeed, LiveMessage
from workbench.server.metrics import PREFIX, Family, Row, filled, number

_log = logging.getLogger(__name__)

AWAKE_S = 300.0
"""Seconds for which the sampler runs after a scrape. Prometheus treats older data as stale."""
MAX_AGE_S = 5.0
"""Maximum age of a sample in seconds. An older sample is not returned."""
MAX_DEVICES = 256
"""Maximum number of devices of each kind, because their names are labels."""

_GPU_LABELS = ("gpu", "uuid")
_NIC_LABELS = ("nic",)
_VM = (
    Family("cpu_utilization_ratio", "Utilization of the available CPUs.", ("cpu", "percent"), 0.01),
    Family("memory_used_bytes", "Memory in use.", ("memory", "used_bytes")),
    Family("memory_size_bytes", "Available memory in total.", ("memory", "total_bytes")),
)
_GPU = (
    Family("gpu_utilization_ratio", "Share of time a kernel ran.", ("utilization_percent",), 0.01),
    Family("gpu_memory_used_bytes", "Frame buffer in use.", ("memory_used_bytes",)),
    Family("gpu_memory_size_bytes", "Size of the frame buffer.", ("memory_total_bytes",)),
    Family("gpu_power_watts", "Power drawn.", ("power_w",)),
    Family("gpu_power_limit_watts", "Power limit.", ("power_limit_w",)),
    Family("gpu_temperature_celsius", "Temperature of the die.", ("temperature_c",)),
    Family("gpu_sm_clock_hertz", "Clock of the multiprocessors.", ("sm_clock_mhz",), 1e6),
    Family("gpu_memory_clock_hertz", "Clock of the memory.", ("memory_clock_mhz",), 1e6),
    Family("gpu_idle_allocated_seconds", "Seconds idle with memory allocated.", ("idle_s",)),
    Family(
        "gpu_pcie_transmit_bytes_per_second",
        "NVML's own short measurement.",
        ("pcie_tx_bytes_per_s",),
    ),
    Family(
        "gpu_pcie_receive_bytes_per_second",
        "NVML's own short measurement.",
        ("pcie_rx_bytes_per_s",),
    ),
)
_GPU_TOTALS = (
    Family("gpu_nvlink_transmit_bytes", "Bytes sent over NVLink.", ("nvlink_tx_bytes_per_s",)),
    Family("gpu_nvlink_receive_bytes", "Bytes received over NVLink.", ("nvlink_rx_bytes_per_s",)),
)
_NIC_TOTALS = (
    Family("nic_transmit_bytes", "Bytes sent, including RDMA.", ("tx_bytes_per_s",)),
    Family("nic_receive_bytes", "Bytes received, including RDMA.", ("rx_bytes_per_s",)),
    Family("nic_rdma_transmit_bytes", "Bytes sent by RDMA.", ("rdma_tx_bytes_per_s",)),
    Family("nic_rdma_receive_bytes", "Bytes received by RDMA.", ("rdma_rx_bytes_per_s",)),
    Family("nic_transmit_packets", "Packets sent.", ("tx_packets_per_s",)),
    Family("nic_receive_packets", "Packets received.", ("rx_packets_per_s",)),
    Family("nic_rdma_transmit_packets", "Packets sent by RDMA.", ("rdma_tx_packets_per_s",)),
    Family("nic_rdma_receive_packets", "Packets received by RDMA.", ("rdma_rx_packets_per_s",)),
    Family("nic_cnp_sent", "Congestion notifications sent.", ("cnp_sent_per_s",)),
    Family(
        "nic_cnp_handled", "Congestion notifications received and acted on.", ("cnp_handled_per_s",)
    ),
    Family("nic_ecn_marked", "Packets received with a congestion mark.", ("ecn_marked_per_s",)),
)
_ERRORS = Family("nic_errors", "Errors, by counter name.", ("errors",))


class HardwareCollector(Collector):
    """Collector of the latest sample, and of the totals of its rates since scraping began."""

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
        self._subscribe()
        with self._lock:
            latest = self._latest
            totals = dict(self._totals)
        if latest is None or self._clock() - latest[0] > MAX_AGE_S:
            return
        plain = latest[1]
        for family in _VM:
            yield filled(GaugeMetricFamily, family, (), [((), plain)])
        for family in _GPU:
            yield filled(GaugeMetricFamily, family, _GPU_LABELS, _gpus(plain))
        yield _clock_limits(_gpus(plain))
        present = {labels for labels, _ in (*_gpus(plain), *_nics(plain))}
        for family in _GPU_TOTALS:
            yield _total(family, _GPU_LABELS, totals, present)
        for family in _NIC_TOTALS:
            yield _total(family, _NIC_LABELS, totals, present)
        yield _total(_ERRORS, (*_NIC_LABELS, "error"), totals, present)

    def close(self) -> None:
        """Unsubscribe until the next scrape."""
        with self._lock:
            unsubscribe = self._unsubscribe
            self._unsubscribe = None
        if unsubscribe is not None:
            unsubscribe()
            _log.debug("hardware metrics are paused until the next scrape")

    def _subscribe(self) -> None:
        with self._lock:
            self._scraped_s = self._clock()
            if self._unsubscribe is not None:
                return
            self._latest = None  # a sample from before the pause is out of date
            self._totals.clear()
            self._unsubscribe = lambda: None  # subscribing may call back with the last message
        unsubscribe = self._feed.subscribe(self._on_sample)
        with self._lock:
            self._unsubscribe = unsubscribe

    def _on_sample(self, message: LiveMessage) -> None:
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
                    self._count((family.name, *labels), number(device, family.path), elapsed_s)
        for labels, nic in _nics(plain):
            errors = nic.get("errors")
            for name in errors if isinstance(errors, dict) else ():
                rate = number(nic, (*_ERRORS.path, name))
                self._count((_ERRORS.name, *labels, name), rate, elapsed_s)

    def _count(self, key: tuple[str, ...], rate: float | None, elapsed_s: float) -> None:
        if rate is not None:
            self._totals[key] = self._totals.get(key, 0.0) + rate * elapsed_s


def _gpus(plain: dict[str, Any]) -> list[Row]:
    return [
        ((str(gpu["index"]), gpu["uuid"] if isinstance(gpu["uuid"], str) else ""), gpu)
        for gpu in plain["gpus"][:MAX_DEVICES]
    ]


def _nics(plain: dict[str, Any]) -> list[Row]:
    return [((nic["name"],), nic) for nic in plain["nics"][:MAX_DEVICES]]


def _clock_limits(gpus: list[Row]) -> Metric:
    metric = GaugeMetricFamily(
        f"{PREFIX}gpu_clocks_held",
        "1 for each reason that currently reduces the clocks.",
        labels=(*_GPU_LABELS, "reason"),
    )
    for labels, gpu in gpus:
        reasons = gpu.get("held_by")
        for reason in dict.fromkeys(reasons) if isinstance(reasons, list) else ():
            metric.add_metric((*labels, reason), 1)
    return metric


def _total(
    family: Family,
    names: tuple[str, ...],
    totals: dict[tuple[str, ...], float],
    present: set[tuple[str, ...]],
) -> Metric:
    """Return the totals of the devices that are still present."""
    metric = CounterMetricFamily(PREFIX + family.name, family.text, labels=names)
    devices = names[:-1] if names[-1] == "error" else names
    for (name, *labels), value in totals.items():
        if name == family.name and tuple(labels[: len(devices)]) in present:
            metric.add_metric(labels, value)
    return metric


_collectors: dict[int, HardwareCollector] = {}


def register(feed: LiveFeed, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics of a feed to `registry`, and replace the metrics of an earlier server."""
    release(registry)
    _collectors[id(registry)] = HardwareCollector(feed)
    registry.register(_collectors[id(registry)])


def release(registry: CollectorRegistry = REGISTRY) -> None:
    """Remove the metrics and unsubscribe from the feed."""
    earlier = _collectors.pop(id(registry), None)
    if earlier is not None:
        registry.unregister(earlier)
        earlier.close()
