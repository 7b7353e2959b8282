"""Small real samplers that give what a machine with GPUs, RDMA and kernels would."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.resources.counters import Sampler

GPU = {
    "index": 0,
    "uuid": "GPU-5a3c7f0e-0000-4000-8000-000000000001",
    "utilization_percent": 37.0,
    "memory_used_bytes": 5 << 30,
    "memory_total_bytes": 80 << 30,
    "power_w": 71.25,
    "temperature_c": 31,
    "power_limit_w": 700.0,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2619,
    "held_by": ["power cap", "thermal"],
    "nvlink_tx_bytes_per_s": 1000.0,
    "nvlink_rx_bytes_per_s": {"unknown": "needs two samples"},
    "pcie_tx_bytes_per_s": 5000.0,
    "pcie_rx_bytes_per_s": 6000.0,
    "idle_s": 0.0,
}
NIC = {
    "name": "ib0",
    "tx_bytes_per_s": 2000.0,
    "rx_bytes_per_s": 3000.0,
    "rdma_tx_bytes_per_s": 500.0,
    "rdma_rx_bytes_per_s": {"unknown": "no such counter"},
    "tx_packets_per_s": 10.0,
    "rx_packets_per_s": 20.0,
    "rdma_tx_packets_per_s": 5.0,
    "rdma_rx_packets_per_s": 6.0,
    "cnp_sent_per_s": 1.0,
    "cnp_handled_per_s": 2.0,
    "ecn_marked_per_s": 3.0,
    "errors": {"rx_dropped": 4.0, "out_of_sequence": {"unknown": "needs two samples"}},
}


def process(pid, kernel_id=None, **more):
    """One process as a sample lists it."""
    return {
        "pid": pid,
        "name": "python3",
        "kind": "kernel" if kernel_id else "other",
        "kernel_id": kernel_id,
        "notebook": None,
        "cluster": None,
        "rank": None,
        "cpu_percent": 1.0,
        "memory_bytes": 1 << 28,
        "gpus": [],
        **more,
    }


@dataclass(frozen=True)
class Plain:
    """A sample that gives what it was given."""

    plain: dict

    def to_plain(self):
        return self.plain


class ScriptedSampler(Sampler):
    """A sampler of this machine, whose samples have `told` instead of its own values."""

    def __init__(self, told=(), **roots):
        super().__init__(**roots)
        self.told = dict(told)
        self.taken = 0
        self.fails = False

    def sample(self):
        self.taken += 1
        if self.fails:
            raise OSError("this machine gives nothing now")
        return Plain({**super().sample().to_plain(), **self.told})
