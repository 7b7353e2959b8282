"""Prometheus: from the server's one sampler to its `/metrics`, without waiting for hardware."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from timers import eventually

from workbench.server.feed import LiveFeed
from workbench.server.hardware_metrics import AWAKE_S, MAX_AGE_S, HardwareCollector

from .samplers import GPU, NIC, ScriptedSampler

PREFIX = "gradient_workbench_"
LABELS = ("gpu", "uuid", "nic", "error", "reason")
ON_GPU = ("0", GPU["uuid"])


class Prometheus:
    """Scrapes one feed; its clock only advances when set."""

    def __init__(self, told, interval_s=0.05):
        self.now_s = 1000.0
        self.samplers = []
        self.feed = LiveFeed(self._make(told), interval_s=interval_s)
        self.registry = CollectorRegistry()
        self.registry.register(HardwareCollector(self.feed, clock=lambda: self.now_s))

    def _make(self, told):
        def make():
            self.samplers.append(ScriptedSampler(told))
            return self.samplers[-1]

        return make

    def text(self):
        return generate_latest(self.registry).decode()

    def scrape(self):
        """Every sample by its name and the values of its labels."""
        return {
            (
                sample.name.removeprefix(PREFIX),
                *(sample.labels[name] for name in LABELS if name in sample.labels),
            ): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def taken(self):
        return self.samplers[-1].taken if self.samplers else 0

    def pass_samples(self, seconds):
        """Let time pass in one step, and a sample come after it."""
        before = self.taken()
        assert eventually(lambda: self.taken() > before + 1)
        self.now_s += seconds
        before = self.taken()
        assert eventually(lambda: self.taken() > before + 1)


def samplers_running():
    return [one for one in threading.enumerate() if one.name == "workbench-sampler"]


@pytest.fixture
def prometheus():
    made = []

    def make(told=(), **options):
        made.append(Prometheus(told, **options))
        return made[-1]

    yield make
    for one in made:  # what nobody scrapes any more ends without a call
        one.now_s += AWAKE_S + 1
    assert eventually(lambda: not samplers_running())


def test_registering_wakes_nothing(prometheus):
    """No hardware is read before the first scrape."""
    prometheus()
    assert samplers_running() == []


def test_the_first_scrape_wakes_the_sampler_and_does_not_wait(prometheus):
    """It gives none of ours; one that comes later has figures."""
    one = prometheus()
    assert one.scrape() == {}
    assert eventually(one.scrape)
    assert len(samplers_running()) == 1


def test_a_scrape_has_the_machine_in_base_units(prometheus):
    """Ratios, bytes, watts, hertz, degrees and seconds, by GPU and NIC."""
    one = prometheus({"gpus": [GPU], "nics": [NIC]})
    found = eventually(one.scrape)
    gpu = {key[0]: value for key, value in found.items() if key[1:] == ON_GPU}
    assert {name: value for name, value in gpu.items() if not name.endswith("_total")} == {
        "gpu_utilization_ratio": pytest.approx(0.37),
        "gpu_memory_used_bytes": 5 << 30,
        "gpu_memory_size_bytes": 80 << 30,
        "gpu_power_watts": 71.25,
        "gpu_power_limit_watts": 700,
        "gpu_temperature_celsius": 31,
        "gpu_sm_clock_hertz": 1.98e9,
        "gpu_memory_clock_hertz": pytest.approx(2.619e9),
        "gpu_idle_allocated_seconds": 0,
        "gpu_pcie_transmit_bytes_per_second": 5000,
        "gpu_pcie_receive_bytes_per_second": 6000,
    }
    assert found[("gpu_clocks_held", *ON_GPU, "power cap")] == 1
    assert found[("gpu_clocks_held", *ON_GPU, "thermal")] == 1
    assert found["memory_size_bytes",] > found["memory_used_bytes",] > 0
    assert eventually(lambda: 0 <= one.scrape().get(("cpu_utilization_ratio",), -1) <= 1)


def test_rates_become_totals(prometheus):
    """A counter grows by the rate times the time between samples; none where it is not known."""
    one = prometheus({"gpus": [GPU], "nics": [NIC]})
    assert eventually(one.scrape)
    one.pass_samples(3)
    one.pass_samples(4)
    found = one.scrape()
    totals = {key: value for key, value in found.items() if key[0].endswith("_total")}
    assert totals == {
        ("gpu_nvlink_transmit_bytes_total", *ON_GPU): 7000,
        ("nic_transmit_bytes_total", "ib0"): 14000,
        ("nic_receive_bytes_total", "ib0"): 21000,
        ("nic_rdma_transmit_bytes_total", "ib0"): 3500,
        ("nic_transmit_packets_total", "ib0"): 70,
        ("nic_receive_packets_total", "ib0"): 140,
        ("nic_rdma_transmit_packets_total", "ib0"): 35,
        ("nic_rdma_receive_packets_total", "ib0"): 42,
        ("nic_cnp_sent_total", "ib0"): 7,
        ("nic_cnp_handled_total", "ib0"): 14,
        ("nic_ecn_marked_total", "ib0"): 21,
        ("nic_errors_total", "ib0", "rx_dropped"): 28,
    }


def test_a_device_that_is_gone_has_no_total(prometheus):
    """A device that was unplugged does not stay in the metrics."""
    one = prometheus({"gpus": [GPU], "nics": [NIC]})
    assert eventually(one.scrape)
    one.pass_samples(1)
    assert ("nic_transmit_bytes_total", "ib0") in one.scrape()
    one.samplers[-1].told.update(nics=[], gpus=[])
    one.pass_samples(1)
    assert not [key for key in one.scrape() if key[0].startswith(("nic_", "gpu_"))]


def test_what_is_not_known_has_no_sample(prometheus):
    """Rather than one of zero."""
    lost = {
        name: value if name in ("index", "uuid") else {"unknown": "GPU is lost"}
        for name, value in GPU.items()
    }
    one = prometheus({"gpus": [lost], "nics": [{"name": "eth0"}]})
    found = eventually(one.scrape)
    assert not [key for key in found if key[0].startswith(("nic_", "gpu_"))]


def test_an_old_sample_is_not_given(prometheus):
    """If the sampler has stopped, a scrape returns nothing rather than old values."""
    one = prometheus()
    assert eventually(one.scrape)
    one.samplers[-1].fails = True
    before = one.taken()
    assert eventually(lambda: one.taken() > before)
    one.now_s += MAX_AGE_S + 1
    assert one.scrape() == {}
    one.samplers[-1].fails = False
    assert eventually(one.scrape)


def test_it_sleeps_when_no_scrape_comes(prometheus):
    """Sampling starts again with the next scrape, its totals at zero."""
    one = prometheus({"gpus": [GPU], "nics": [NIC]})
    assert eventually(one.scrape)
    one.pass_samples(1)
    one.now_s += AWAKE_S + 1
    assert eventually(lambda: not samplers_running())
    assert one.scrape() == {}
    assert eventually(one.scrape)
    found = one.scrape()
    assert found.get(("nic_transmit_bytes_total", "ib0"), 0) == 0


def test_scrapes_and_clients_share_one_sampler(prometheus):
    """Neither starts a second one."""
    one = prometheus()
    heard = []
    leave = one.feed.subscribe(heard.append)
    assert eventually(lambda: heard)
    assert eventually(one.scrape)
    assert len(one.samplers) == 1
    assert len(samplers_running()) == 1
    leave()
    before = one.taken()
    assert eventually(lambda: one.taken() > before)
