"""Errors of a calibration at sizes that it has not swept, at known rates and numbers of VMs.

Links of test VMs are shaped. Bus bandwidth is compared with what TCP's headers leave of the rate;
the links count the headers of Ethernet, and no more. All ranks share this machine's cores: with
more ranks than cores, the latency of small allreduces is that of the scheduler. An error that does
not exceed the noise of the measured time, twice its standard error, may be the measurement's.
"""

import os
import time
import warnings

import numpy as np

import workbench as wb
from tests.bench.bounds import NotMeasured, at_most, sized
from workbench.fabric import tcp_efficiency
from workbench.testbed import vms, why_not

RATES_GBPS = sized((0.25, 0.5, 1.0, 2.0), (1.0,))
VMS = sized((2, 3, 4), (2,))
MEDIAN, HIGH = 0.03, 0.10
"""What is asked of the median error and of its 95th percentile."""
LARGE_BYTES = 500_000


def measure():
    """Calibrate each fabric once, and print a row for each."""
    if (reason := why_not()) is not None:
        raise NotMeasured(reason)
    print(
        "VMs  Gbit/s  busbw of payload  median error  largest  noise up to  median from 0.5 MB  "
        "halves differ   took"
    )
    every = []
    for n in VMS:
        with vms(n) as machines:
            hosts, config = machines.hosts(), machines.ssh_config
            with wb.Cluster(hosts=hosts, ssh_config=config, record=False) as cluster:
                for gbps in RATES_GBPS:
                    for name in machines.names:
                        machines.shape(name, gbps)
                    every += _row(cluster, n, gbps)
    large = [error for size, error, _ in every if size >= LARGE_BYTES]
    for what, errors in (("all sizes", [error for _, error, _ in every]), ("from 0.5 MB", large)):
        percent = [100 * error for error in errors]
        yield at_most(f"{what}: error", percent, 100 * MEDIAN, "%")
        high = float(np.quantile(percent, 0.95))
        yield at_most(f"{what}: 95th percentile of the error", high, 100 * HIGH, "%")
    high = [noise for _, error, noise in every if error > HIGH]
    inside = sum(2 * noise > HIGH for noise in high)
    print(
        f"{len(high)} of {len(every)} errors exceed {HIGH:.0%}, {inside} of them where the noise "
        "does so too"
    )


def _row(cluster, n, gbps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says how far the halves of the sweep differ
        began = time.perf_counter()
        fabric = cluster.calibrate()
        took_s = time.perf_counter() - began
    noise = fabric.held_out_noise
    found = [(size, e, own) for (size, _, e), own in zip(fabric.held_out, noise, strict=True)]
    errors = [error for _, error, _ in found]
    large = [error for size, error, _ in found if size >= LARGE_BYTES]
    share = fabric.busbw_gbps / gbps / tcp_efficiency(1500, 14)
    print(
        f"{n:3}  {gbps:6}  {share:16.1%}  {np.median(errors):12.1%}  {max(errors):7.1%}  "
        f"{2 * max(noise):11.1%}  {np.median(large):18.1%}  {fabric.disagreement:13.1%}  "
        f"{took_s:3.0f} s  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return found
