"""Three VMs whose links have known rates: a calibration and a matrix of their links."""

import warnings

import workbench as wb
from tests.truth import START_S
from workbench.cluster import TextSink
from workbench.errors import VmsUnavailable
from workbench.fabric import tcp_efficiency
from workbench.testbed import vms, why_not

RATES = (0.5, 1.0)
SLOW_GBPS, SLOW = 0.25, "vm3"
SIZES = (300_000, 1_500_000, 6_000_000)
"""Bytes of allreduces of which none is swept."""
CALIBRATION_S = 15
PAYLOAD = tcp_efficiency(1500, 14)
"""The share of a link's rate that TCP's headers leave; `tc` counts the headers of Ethernet."""
REDUCE = """
import time, torch
torch.set_num_threads(1)
def reduce(size, count):
    taken, data = [], torch.zeros(size // 4)
    for _ in range(count):
        hvd.barrier()
        began = time.perf_counter()
        hvd.allreduce_(data, op=hvd.Sum, name=f"truth.{size}")
        taken.append(time.perf_counter() - began)
    return sorted(taken)
"""
REPETITIONS = 20


def measure(table):
    """Calibrate the fabric at each rate, and measure pairs of VMs, of which one is slower."""
    if (reason := why_not()) is not None:
        raise VmsUnavailable(reason)
    with vms(3) as machines:
        hosts, config = machines.hosts(), machines.ssh_config
        with wb.Cluster(
            hosts=hosts, ssh_config=config, record=False, start_timeout_s=START_S
        ) as cluster:
            cluster.run(REDUCE, sink=TextSink())
            for gbps in RATES:
                for name in machines.names:
                    machines.shape(name, gbps)
                calibration(table, cluster, gbps)
            rates = dict.fromkeys(machines.names, RATES[-1])
            matrix(table, cluster, rates, ())
            machines.shape(SLOW, SLOW_GBPS)
            matrix(table, cluster, rates | {SLOW: SLOW_GBPS}, (SLOW,))


def calibration(table, cluster, gbps):
    """Compare the bandwidth with the rate, and times with those of a script's own allreduces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a busy machine; the differences show it
        fabric = cluster.calibrate(seconds=CALIBRATION_S, show_progress=False)
    table.add("calibrated bus bandwidth", [fabric.busbw_gbps], [gbps * PAYLOAD])
    for size in SIZES:
        taken = cluster.run(f"reduce({size}, {REPETITIONS})", sink=TextSink()).values
        # as a calibration does: other work on the machine disturbs the shortest quarter least
        quarter = [sum(own[: REPETITIONS // 4]) / (REPETITIONS // 4) for own in taken.values()]
        truth_us = sum(quarter) / len(quarter) * 1e6
        table.add("calibrated time of an allreduce", [fabric.predict_us(size)], [truth_us])


def matrix(table, cluster, rates, slow):
    """Compare each pair with the slower of its two links; `slow` are the VMs that are."""
    found = cluster.bandwidth_matrix()
    for one, row in zip(found.names, found.alone_gbps, strict=True):
        for other, gbps in zip(found.names, row, strict=True):
            if one != other:
                shown = float("nan") if gbps is None else gbps
                truth = min(rates[one], rates[other]) * PAYLOAD
                table.add("matrix: bandwidth of a pair", [shown], [truth])
    named = tuple(text.split()[0] for text in found.slow if "all others slowly" in text)
    table.add("matrix: the slow VM", [named], [slow])
